"""Weights stored once in the order that their convolutions run in, instead of converted in every call.

Why: a convolution that runs in channels-last converts a plain weight each time, in the forward and in the backward, and
its gradient back; of a deep stage's convolution that is most of the traffic.
How: the parameter itself is stored anew, before anything is traced: nothing is copied that could grow old, so that
optimizers, `load_state_dict`, tied weights and writes through `.data` work as before.
Assumes: convolutions alone read the weight, through casts at most.
Safe: values stay; only the strides of parameters change, as `model.to(memory_format=...)` changes them. Code that calls
`view` on such a weight fails, as it does after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.passes.rewrites.anchor_calls import weight_of
from frx_graph.passes.rewrites.order_choice import BANDWIDTH_UNKNOWN, cheapest_orders
from frx_graph.passes.rewrites.order_members import current_order
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Refusal
from frx_graph.rules.dimension_map import Order, canonical

NAME = "preconvert_weights"
_CAST = "aten._to_copy"


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A parameter, by its path in the program, and the order that it is to be stored in."""

    path: str
    order: Order


def propose(subject: RewriteSubject) -> Iterator[StoredWeight | Refusal]:
    """Every parameter that its convolutions want in another order than it has. Of a weight that several convolutions
    share, in different orders, nothing is said but that, and nothing of one that lies best as it is."""
    facts = subject.facts
    weights = {op.node: weight for op in (anchor.op for anchor in subject.anchors) if (weight := _weight(op, facts))}
    if weights and subject.bandwidth_bytes_per_s is None:
        yield Refusal(NAME, BANDWIDTH_UNKNOWN, tuple(weights))
        return
    wanted: dict[str, set[Order]] = {}
    for node, order in cheapest_orders(subject).items():
        if node in weights:
            wanted.setdefault(weights[node].name, set()).add(order)
    for name, path in {weight.name: weight.path for weight in weights.values()}.items():
        if name not in wanted:
            yield Refusal(path, "how long its convolution takes in either order could not be measured")
    for name, orders in wanted.items():
        parameter = facts.values[name]
        if len(orders) > 1:
            yield Refusal(parameter.path, "the convolutions that share it are fastest in different orders")
        elif not _read_by_convolutions_only(parameter, facts):
            yield Refusal(parameter.path, "something else than convolutions reads it")
        elif canonical(parameter.shape, order := orders.pop()) != current_order(parameter):
            yield StoredWeight(parameter.path, order)


def _weight(op: OpFacts, facts: GraphFacts) -> ValueFacts | None:
    """The parameter that a convolution reads as its weight; None where it reads something else, or is none."""
    weight = weight_of(op, facts)
    if weight is None:
        return None
    producer = facts.producer(weight.name)
    if producer is not None and producer.operator == _CAST:
        weight = facts.values[producer.inputs[0]]
    return weight if weight.is_parameter else None


def _read_by_convolutions_only(parameter: ValueFacts, facts: GraphFacts) -> bool:
    for op in facts.users(parameter.name):
        if op.operator == _CAST:
            if not all(_is_weight_of(reader.node, op.outputs[0], facts) for reader in facts.users(op.outputs[0])):
                return False
        elif not _is_weight_of(op.node, parameter.name, facts):
            return False
    return True


def _is_weight_of(node: str, value: str, facts: GraphFacts) -> bool:
    weight = weight_of(facts.op_by_node[node], facts)
    return weight is not None and weight.name == value
