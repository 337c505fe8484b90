"""Store weights once in the order that their convolutions run in, instead of converting them in every call.

Why: a convolution that runs in channels-last converts a plain weight in each forward and backward, and the gradient
back. For a deep stage's convolution that is most of the traffic.
How: the parameter itself is stored in the new order before anything is traced. No second copy can become stale, so
optimizers, `load_state_dict`, tied weights and writes through `.data` work as before.
Assumes: only convolutions read the weight, through casts at most. No operator that depends on strides, or is less exact
in channels-last, reads their results.
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
from frx_graph.passes.layouts.dimension_map import Order, canonicalize_order
from frx_graph.passes.rewrites.layout.anchor_calls import find_weight
from frx_graph.passes.rewrites.layout.assignment import BANDWIDTH_UNKNOWN, find_cheapest_orders
from frx_graph.passes.rewrites.layout.ops import compute_current_order
from frx_graph.passes.rewrites.meta_strides.stride_sensitivity import depends_on_strides
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
    # Those without measured times, too.
    read = {op.node: weight for op in facts.ops if (weight := _find_parameter(op, facts))}
    weights = {anchor.op.node: read[anchor.op.node] for anchor in subject.anchors if anchor.op.node in read}
    if weights and subject.bandwidth_bytes_per_s is None:
        yield Refusal(NAME, BANDWIDTH_UNKNOWN, tuple(weights))
        return
    wanted: dict[str, set[Order]] = {}
    for node, order in find_cheapest_orders(subject).items():
        if node in weights:
            # Of an image with a dimension of size 1, channels-last has another canonical order.
            rank = len(order)
            plain = order == tuple(range(rank))
            wanted.setdefault(weights[node].name, set()).add(order if plain else CHANNELS_LAST_ORDER[rank])
    for name, path in {weight.name: weight.path for weight in weights.values()}.items():
        if name not in wanted:
            yield Refusal(path, "how long its convolution takes in either order could not be measured")
    minding = _find_layout_sensitive(subject)
    for name, orders in wanted.items():
        parameter = facts.values[name]
        readers = [node for node, weight in read.items() if weight.name == name]
        reached = next((minding[node] for node in readers if node in minding), None)
        if len(orders) > 1:
            yield Refusal(parameter.path, "the convolutions that share it are fastest in different orders")
        elif not _is_read_by_convolutions(parameter, facts):
            yield Refusal(parameter.path, "an operator other than a convolution reads it")
        elif canonicalize_order(parameter.shape, order := orders.pop()) != compute_current_order(parameter):
            if reached is not None:
                yield Refusal(parameter.path, f"what its convolution computes reaches {reached}")
            else:
                yield StoredWeight(parameter.path, order)


def _find_layout_sensitive(subject: RewriteSubject) -> dict[str, str]:
    """Return operators whose results reach one that minds their layout, with the reason; products end the search."""
    facts, found = subject.facts, dict[str, str]()
    for op in facts.ops:
        told, inexact = depends_on_strides(op), subject.is_less_exact(op)
        if op.phase is not Phase.FORWARD or not (told or inexact):
            continue
        why = "depends on its strides" if told else "is less exact in channels-last"
        waiting = list(op.inputs)
        while waiting:
            made = facts.get_producer(waiting.pop())
            if made is not None and made.node not in found and made.operator not in MATRIX_PRODUCTS:
                found[made.node] = f"{op.operator}, which {why}"
                waiting.extend(made.inputs)
    return found


def _find_parameter(op: OpFacts, facts: GraphFacts) -> ValueFacts | None:
    """Return the parameter that a convolution reads as its weight; None if it reads something else."""
    weight = find_weight(op, facts)
    if weight is None:
        return None
    producer = facts.get_producer(weight.name)
    if producer is not None and producer.operator == _CAST:
        weight = facts.values[producer.inputs[0]]
    return weight if weight.is_parameter else None


def _is_read_by_convolutions(parameter: ValueFacts, facts: GraphFacts) -> bool:
    readers = [(parameter.name, op) for op in facts.get_users(parameter.name) if op.operator != _CAST]
    casts = [op.outputs[0] for op in facts.get_users(parameter.name) if op.operator == _CAST]
    readers += [(cast, op) for cast in casts for op in facts.get_users(cast)]
    return all((weight := find_weight(op, facts)) is not None and weight.name == name for name, op in readers)
