"""Name the calls to time before orders can be chosen: every anchor in each order that it may run in.

An anchor is an operator whose kernel is faster in one order than in another: convolutions, and also poolings and
attention if dedicated kernels run them.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch

from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, Layout, make_ordered_strides
from frx_graph.facts.operator_families import CONVOLUTIONS
from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec, build_signature, make_tensor_spec
from frx_graph.passes.layouts.dimension_map import Order, make_plain_order
from frx_graph.passes.layouts.operator_layout import classify_memory_order
from frx_graph.passes.rewrites.layout.conversion import MEMORY_FORMATS
from frx_graph.passes.rewrites.layout.ops import OrderedOp
from frx_graph.passes.rewrites.packed_forms import make_packed_form
from frx_graph.passes.rewrites.product_forms import Form, list_forms

HEADS_ORDER: Order = (0, 2, 1, 3)
"""Attention heads as a projection leaves them: (batch, heads, sequence, features) in memory as (batch, sequence,
...)."""


@dataclass(frozen=True, slots=True)
class AnchorCall:
    """One anchor in one order. Its time is that of all `calls`, each in its fastest form, plus that of moving
    `moved_bytes`. If sizes may change, no other form counts."""

    calls: tuple[tuple[Form, ...], ...]
    moved_bytes: int = 0


def list_anchor_orders(member: OrderedOp) -> tuple[Order, ...]:
    """Return the orders in which the anchor may run, plain first."""
    rank = len(member.shape)
    other = CHANNELS_LAST_ORDER.get(rank) if member.row.images else HEADS_ORDER
    return (make_plain_order(member.shape), other) if rank in (4, 5) and other is not None else ()


def list_anchor_calls(
    member: OrderedOp, facts: GraphFacts, phase: Phase, *, prepared: bool = False, frozen: Collection[str] = ()
) -> Mapping[Order, AnchorCall]:
    """Return the calls to time of one anchor, by order. The forward of a training step includes the backward's call.

    With `prepared`, weights are stored in each order beforehand. Weights in `frozen` are constants, and may be packed.
    """
    weight = find_weight(member.op, facts)
    packs = weight is not None and weight.name in frozen
    return {
        order: _make_anchor_call(member, order, facts, phase, prepared, packs) for order in list_anchor_orders(member)
    }


def list_conversion_calls(value: ValueFacts) -> tuple[OperatorSignature, ...]:
    """Return the copies that bring an image or volume from plain to channels-last and back; none for other values."""
    rank = len(value.shape)
    if rank not in MEMORY_FORMATS or not value.dense or 0 in value.shape:
        return ()
    formats = {make_plain_order(value.shape): torch.contiguous_format, CHANNELS_LAST_ORDER[rank]: MEMORY_FORMATS[rank]}
    return tuple(
        OperatorSignature(
            "aten.clone.default",
            (replace(make_tensor_spec(value), strides=make_ordered_strides(value.shape, stored)),),
            (("memory_format", formats[wanted]),),
        )
        for stored, wanted in itertools.permutations(formats)
    )


def find_weight(op: OpFacts, facts: GraphFacts) -> ValueFacts | None:
    """Return the weight of a convolution or of a convolution's backward; None for other operators."""
    if op.operator not in CONVOLUTIONS:
        return None
    return facts.get_operand(op, 2 if op.operator == "aten.convolution_backward" else 1)


def find_converted_weight(op: OpFacts, order: Order, facts: GraphFacts) -> ValueFacts | None:
    """Return the weight that a convolution in `order` needs converted in the graph: channels-last, for a plain run.

    The convolution itself converts a plain weight. A channels-last one makes it run in channels-last for any input.
    """
    weight = find_weight(op, facts)
    if weight is None or order != make_plain_order(weight.shape):
        return None
    return weight if classify_memory_order(weight) is Layout.CHANNELS_LAST else None


def _make_anchor_call(
    member: OrderedOp, order: Order, facts: GraphFacts, phase: Phase, prepared: bool, packs: bool
) -> AnchorCall:
    op = member.op
    weight = find_weight(op, facts) if prepared else find_converted_weight(op, order, facts)
    strides = {value.name: make_ordered_strides(value.shape, order) for value in member.operands}
    if weight is not None:
        strides[weight.name] = make_ordered_strides(weight.shape, order)
    forward = build_signature(op, facts, strides)
    moved = 0 if weight is None or prepared else 2 * weight.bytes
    results = _infer_results(op, order, facts)
    packed = make_packed_form(forward, results) if packs else None
    calls = [(*list_forms(forward, results), *((packed,) if isinstance(packed, Form) else ()))]
    if facts.train and phase is Phase.FORWARD and op.operator == "aten.convolution":
        calls.append(_list_backward_forms(op, forward, order, facts))
    if facts.has_dynamic_sizes(op):
        calls = [(present,) for present, *_ in calls]
    return AnchorCall(tuple(calls), moved)


def _infer_results(op: OpFacts, order: Order, facts: GraphFacts) -> tuple[TensorSpec, ...]:
    """Return the results of the call in this order; a bias's gradient has only one."""
    return tuple(
        spec if len(spec.shape) != len(order) else replace(spec, strides=make_ordered_strides(spec.shape, order))
        for spec in map(make_tensor_spec, facts.get_output_values(op))
    )


def _list_backward_forms(op: OpFacts, forward: OperatorSignature, order: Order, facts: GraphFacts) -> tuple[Form, ...]:
    """Return the forms of the backward, whose conversions the forward decides. The graph's input gets no gradient."""
    (gradient,) = _infer_results(op, order, facts)
    image, weight, bias = forward.args[:3]
    assert isinstance(image, TensorSpec) and isinstance(weight, TensorSpec)
    source = facts.get_operand(op, 0)
    to_input = source is not None and source.producer is not None
    biases = [bias] if isinstance(bias, TensorSpec) else []
    sizes, mask = biases[0].shape if biases else None, (to_input, True, bool(biases))
    arguments = (gradient, image, weight, sizes, *forward.args[3:9], mask)
    call = OperatorSignature("aten.convolution_backward.default", arguments)
    results = [replace(spec, strides=make_ordered_strides(spec.shape, order)) for spec in (image, weight)]
    return list_forms(call, [*results[not to_input :], *biases])
