"""Store weights once in the order that their convolutions run in, instead of converting them in every call.

Why: a convolution that runs in channels-last converts a plain weight each time, in the forward and in the backward, and
its gradient back; of a deep stage's convolution that is most of the traffic.
How: the parameter itself is stored anew, before anything is traced: nothing is copied that could grow old, so that
optimizers, `load_state_dict`, tied weights and writes through `.data` work as before.
Assumes: convolutions alone read the weight, through casts at most, and no operator that sees strides, or is less exact
in channels-last, what they compute.
Safe: values stay; only the strides of parameters change, as `model.to(memory_format=...)` changes them. Outputs may
come channels-last, and code that calls `view` on such a weight fails, as it does after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import CHANNELS_LAST_ORDER
from frx_graph.facts.operator_families import MATRIX_PRODUCTS
from frx_graph.passes.layouts.dimension_map import Order, canonical
from frx_graph.passes.rewrites.layout.anchor_calls import weight_of
from frx_graph.passes.rewrites.layout.assignment import BANDWIDTH_UNKNOWN, cheapest_orders
from frx_graph.passes.rewrites.layout.ops import current_order
from frx_graph.passes.rewrites.meta_strides.stride_sensitivity import sees_strides
from frx_graph.passes.rewrites.rewrite import RewriteSubject
from frx_graph.records import Refusal

NAME = "preconvert_weights"
_CAST = "aten._to_copy"


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A parameter, by its path in the program, and the order that it is to be stored in."""

    path: str
    order: Order


def propose(subject: RewriteSubject) -> Iterator[StoredWeight | Refusal]:
    """Yield every parameter that its convolutions want in another order. A weight is left out if it is best as it is,
    and refused if its convolutions want different orders."""
    facts = subject.facts
    weights = {op.node: weight for op in (anchor.op for anchor in subject.anchors) if (weight := _weight(op, facts))}
    if weights and subject.bandwidth_bytes_per_s is None:
        yield Refusal(NAME, BANDWIDTH_UNKNOWN, tuple(weights))
        return
    wanted: dict[str, set[Order]] = {}
    for node, order in cheapest_orders(subject).items():
        if node in weights:
            # Of an image with a dimension of size 1, channels-last has another canonical order.
            rank = len(order)
            plain = order == tuple(range(rank))
            wanted.setdefault(weights[node].name, set()).add(order if plain else CHANNELS_LAST_ORDER[rank])
    for name, path in {weight.name: weight.path for weight in weights.values()}.items():
        if name not in wanted:
            yield Refusal(path, "how long its convolution takes in either order could not be measured")
    minding = _reaching_what_minds(subject)
    # Those without measured times, too.
    read = [(op.node, weight) for op in facts.ops if (weight := _weight(op, facts))]
    for name, orders in wanted.items():
        parameter = facts.values[name]
        readers = [node for node, weight in read if weight.name == name]
        reached = next((minding[node] for node in readers if node in minding), None)
        if len(orders) > 1:
            yield Refusal(parameter.path, "the convolutions that share it are fastest in different orders")
        elif not _read_by_convolutions_only(parameter, facts):
            yield Refusal(parameter.path, "an operator other than a convolution reads it")
        elif canonical(parameter.shape, order := orders.pop()) != current_order(parameter):
            if reached is not None:
                yield Refusal(parameter.path, f"what its convolution computes reaches {reached}")
            else:
                yield StoredWeight(parameter.path, order)


def _reaching_what_minds(subject: RewriteSubject) -> dict[str, str]:
    """Return the operators whose results reach an operator that minds their layout, each with the reason. Products of
    matrices make new values, whatever they read."""
    facts, found = subject.facts, dict[str, str]()
    for op in facts.ops:
        why = _why_it_minds(op, subject)
        if op.phase is not Phase.FORWARD or why is None:
            continue
        waiting = list(op.inputs)
        while waiting:
            made = facts.producer(waiting.pop())
            if made is not None and made.node not in found and made.operator not in MATRIX_PRODUCTS:
                found[made.node] = f"{op.operator}, which {why}"
                waiting.extend(made.inputs)
    return found


def _why_it_minds(op: OpFacts, subject: RewriteSubject) -> str | None:
    if sees_strides(op):
        return "sees how it lies"
    return "is less exact in channels-last" if subject.loses_digits(op) else None


def _weight(op: OpFacts, facts: GraphFacts) -> ValueFacts | None:
    """Return the parameter that a convolution reads as its weight; None if it reads something else."""
    weight = weight_of(op, facts)
    if weight is None:
        return None
    producer = facts.producer(weight.name)
    if producer is not None and producer.operator == _CAST:
        weight = facts.values[producer.inputs[0]]
    return weight if weight.is_parameter else None


def _read_by_convolutions_only(parameter: ValueFacts, facts: GraphFacts) -> bool:
    readers = [(parameter.name, op) for op in facts.users(parameter.name) if op.operator != _CAST]
    casts = [op.outputs[0] for op in facts.users(parameter.name) if op.operator == _CAST]
    readers += [(cast, op) for cast in casts for op in facts.users(cast)]
    return all((weight := weight_of(op, facts)) is not None and weight.name == name for name, op in readers)
