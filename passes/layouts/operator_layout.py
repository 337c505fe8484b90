"""Apply the operator table to a call, and classify the memory orders of operands and results."""

from __future__ import annotations

import enum
import math

import torch

from frx_graph.capture.captured_graph import InputKind
from frx_graph.facts.graph_facts import OpFacts, ValueFacts, ValueRef
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, Layout, get_dimension_order
from frx_graph.facts.operator_overload import find_overload, get_argument
from frx_graph.rules.layout_operator import POINTWISE, UNKNOWN, LayoutOperator, LayoutRole, load_layout_operators
from frx_graph.support.torch_internals import functorch_config, get_schema


def find_layout_operator(op: OpFacts) -> LayoutOperator:
    """Return the row of `op`. An in-place operator has the row of the out-of-place form; an operator with an explicit
    memory format is a barrier."""
    if op.kwargs.get("memory_format") not in (None, torch.preserve_format):
        return UNKNOWN
    rows = load_layout_operators()
    row = rows.get(op.operator) or rows.get(op.operator.removesuffix("_"))
    if row is None:
        return POINTWISE if op.pointwise else UNKNOWN
    # `max` of two tensors is pointwise, `max` over a dimension is not.
    return POINTWISE if op.pointwise and row.role is LayoutRole.REDUCTION else row


def list_layout_operands(op: OpFacts, row: LayoutOperator) -> tuple[str, ...]:
    """Return the values among the operands whose layout counts, in argument order, each once."""
    if row.operands is None:
        return tuple(dict.fromkeys(op.inputs))
    names: list[str] = []
    for position in row.operands:
        argument = op.args[position] if position < len(op.args) else None
        items = argument if isinstance(argument, tuple) else (argument,)
        names.extend(item.name for item in items if isinstance(item, ValueRef))
    return tuple(dict.fromkeys(names))


def list_layout_results(op: OpFacts, row: LayoutOperator) -> tuple[str, ...]:
    """Return the results that carry the layout: not statistics, nor the gradients of weights."""
    if row.results is None:
        return op.outputs
    placed = zip(_find_result_positions(op), op.outputs, strict=False)
    return tuple(name for position, name in placed if position in row.results)


def follows_operand(op: OpFacts) -> bool:
    """Return True if the result must have the layout of the first operand: views, in-place operators, `*_like`."""
    return op.view or is_in_place(op) or op.operator.endswith("_like")


def is_in_place(op: OpFacts) -> bool:
    """Return True if the result is the first operand itself."""
    return bool(op.mutates) and op.mutates[0] in op.inputs[:1]


def requires_one_layout(op: OpFacts) -> bool:
    """Return True for the backward of a pooling. If the gradient and the saved input differ in layout, it copies both
    and its own result (seen on the CPU, torch 2.15)."""
    return op.operator.endswith("_backward") and "_pool" in op.operator


def _find_result_positions(op: OpFacts) -> list[int]:
    """Return the positions of `outputs` among the operator's results: a masked gradient is None there, not a value."""
    mask = get_argument(op, "output_mask")
    overload = find_overload(op.target)
    returned = len(get_schema(overload).returns) if overload is not None else len(op.outputs)
    if not isinstance(mask, tuple) or len(op.outputs) == returned:
        return list(range(returned))
    return [position for position in range(returned) if position >= len(mask) or mask[position]]


def has_memory_order(value: ValueFacts) -> bool:
    """Return False if plain and channels-last are the same bytes (one channel, a 1x1 image), and for other ranks."""
    shape = value.shape
    return len(shape) in (4, 5) and shape[1] > 1 and math.prod(shape[2:]) > 1 and shape[0] > 0


def classify_memory_order(value: ValueFacts) -> Layout | None:
    """Return PLAIN or CHANNELS_LAST; None if it is neither, or both.

    A slice of a channels-last tensor has gaps and still has its channels innermost: it counts as channels-last.
    """
    if not has_memory_order(value):
        return None
    if value.layout is not Layout.STRIDED:
        return value.layout if value.layout in (Layout.PLAIN, Layout.CHANNELS_LAST) else None
    rank = len(value.shape)
    # Dimensions of size 1 have a place in every order.
    actual, plain, channels_last = (
        [dim for dim in order if value.shape[dim] != 1]
        for order in (get_dimension_order(value.shape, value.strides), range(rank), CHANNELS_LAST_ORDER[rank])
    )
    if actual == plain:
        return Layout.PLAIN
    return Layout.CHANNELS_LAST if actual == channels_last else None


def is_converted_once(value: ValueFacts) -> bool:
    """Return True for parameters and buffers, whose layout can be chosen once, when the model is built."""
    return value.kind in (InputKind.PARAMETER, InputKind.BUFFER)


def swap_layout(layout: Layout) -> Layout:
    """Return channels-last for plain and the reverse."""
    return Layout.PLAIN if layout is Layout.CHANNELS_LAST else Layout.CHANNELS_LAST


class LayoutConstraint(enum.StrEnum):
    """torch's layout tags of operators (`torch.Tag`), strictest first."""

    EXACT = "needs_exact_strides"
    CONTIGUOUS = "needs_contiguous_strides"
    FIXED_ORDER = "needs_fixed_stride_order"
    FLEXIBLE = "flexible_layout"


def find_layout_constraint(op: OpFacts) -> LayoutConstraint | None:
    """Return the constraint under which Inductor calls a custom operator: its strictest tag, else torch's default. None
    for a higher-order operator and for one that is no longer registered."""
    overload = find_overload(op.target)
    if overload is None:
        return None
    tags = {tag.name for tag in overload.tags}
    default = functorch_config.custom_op_default_layout_constraint
    return next((constraint for constraint in LayoutConstraint if constraint.value in tags), LayoutConstraint(default))


def has_default_constraint(op: OpFacts) -> bool:
    """Return True if the operator's registration names no constraint."""
    overload = find_overload(op.target)
    names = {constraint.value for constraint in LayoutConstraint}
    return overload is not None and names.isdisjoint(tag.name for tag in overload.tags)
