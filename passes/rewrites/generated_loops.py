"""Name the calls to time of poolings and of upsampling's gathers, if a compiler writes their loops.

Such a loop runs in any order, and its speed differs from that of eager's kernel. It is vectorised over its innermost
dimension if neighbours are read side by side; those of windows in plain images are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import make_ordered_strides
from frx_graph.facts.operator_families import GATHERS
from frx_graph.facts.operator_overload import get_argument
from frx_graph.facts.operator_signature import GeneratedCall, OperatorSignature, ReadResult, build_signature
from frx_graph.passes.layouts.dimension_map import Order, canonicalize_order
from frx_graph.passes.rewrites.layout.anchor_calls import list_anchor_orders
from frx_graph.passes.rewrites.layout.ops import OrderedOp

_LARGEST_WINDOW = 25
"""Largest window that Inductor pools in a loop (`should_fallback_max_pool_with_indices`, torch 2.15)."""


def list_loop_calls(member: OrderedOp, facts: GraphFacts) -> Mapping[Order, GeneratedCall]:
    """Return the calls to time: plain, channels-last, and as it is. Gathers of one loop, `times`, share its time."""
    orders = {canonicalize_order(member.shape, order): order for order in list_anchor_orders(member)}
    if not orders:
        return {}
    return {order: _make_call(member, order, facts) for order in {**orders, member.current: member.current}}


def _make_call(member: OrderedOp, order: Order, facts: GraphFacts) -> GeneratedCall:
    op = member.op
    signature = build_signature(op, facts, {value.name: _compute_strides(value, order) for value in member.operands})
    results = tuple(
        ReadResult(position, _compute_strides(value, order))
        for position, value in enumerate(facts.get_output_values(op))
        if value.users or value.name in facts.outputs
    )
    if op.operator == "aten.max_pool2d_with_indices" and [result.position for result in results] == [0]:
        signature = _drop_indices(op, signature)
    return GeneratedCall(signature, results, len(_find_sharing_gathers(op, facts)))


def _drop_indices(op: OpFacts, signature: OperatorSignature) -> OperatorSignature:
    """Return Inductor's call for a maximum pooling without indices: its time holds before and after decompositions."""
    given = [get_argument(op, name) for name in ("kernel_size", "stride", "padding", "dilation")]
    window, stride, padding, dilation = (value if isinstance(value, tuple) else (value,) for value in given)
    settings = ((value * 2)[:2] for value in (window, stride or window, padding, dilation))
    arguments = (signature.args[0], *settings, bool(get_argument(op, "ceil_mode")))
    if math.prod(size for size in (window * 2)[:2] if isinstance(size, int)) > _LARGEST_WINDOW:
        return signature
    return OperatorSignature("prims._low_memory_max_pool_with_offsets.default", arguments)


def _compute_strides(value: ValueFacts, order: Order) -> tuple[int, ...]:
    return make_ordered_strides(value.shape, order) if len(value.shape) == len(order) else value.strides


def _find_sharing_gathers(op: OpFacts, facts: GraphFacts) -> Sequence[OpFacts]:
    """Return the gathers from the same operand to images of the same size, this operator among them."""
    if op.operator not in GATHERS:
        return (op,)
    (result,) = facts.get_output_values(op)
    return [
        other
        for other in facts.get_users(op.inputs[0])
        if other.operator == op.operator
        and other.inputs[0] == op.inputs[0]
        and [value.shape for value in facts.get_output_values(other)] == [result.shape]
    ]
