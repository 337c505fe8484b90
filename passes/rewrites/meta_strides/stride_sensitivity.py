"""Decide which operators of a functional graph can take other strides than those that they were traced with."""

from __future__ import annotations

import math

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.operator_families import MATRIX_PRODUCTS, WRITING_COPIES
from frx_graph.facts.operator_overload import find_overload, is_random_call
from frx_graph.passes.layouts.operator_layout import find_layout_operator
from frx_graph.rules.layout_operator import LayoutRole
from frx_graph.support.torch_internals import get_schema

_TOLD_PLACES = frozenset(
    {"aten.as_strided", "aten.as_strided_", "aten.as_strided_copy", "aten.as_strided_scatter", "aten.set_"}
)
_TOLD_STRIDES = _TOLD_PLACES | {
    f"aten.{name}"
    for name in ("resize", "resize_", "sym_storage_offset", "sym_stride", "view_as_complex", "view_as_real")
}


def requires_traced_strides(op: OpFacts) -> bool:
    """Return True for operators that must be given their traced strides: those with explicit strides or storage, that
    write into an operand, that draw random numbers in memory order, or that are unknown."""
    if depends_on_strides(op):
        return True
    if op.operator in WRITING_COPIES:
        return False
    overload = find_overload(op.target)
    return overload is None or get_schema(overload).is_mutable or is_random_call(overload, op.args, op.kwargs)


def depends_on_strides(op: OpFacts) -> bool:
    """Return True for operators whose values depend on strides: they take or return strides or storage, or are
    unknown."""
    return op.opaque or op.operator in _TOLD_STRIDES or op.target == "aten.view.dtype"


def uses_storage_offsets(op: OpFacts) -> bool:
    """Return True for operators that address an operand's memory by offsets, which are wrong for a view elsewhere."""
    return op.operator in _TOLD_PLACES


def reads_ambiguous_image(op: OpFacts, facts: GraphFacts) -> bool:
    """Return True for a convolution of one computed channel, which is in both layouts at once. Strides without meaning
    decide which one torch runs, and fakes predict them wrongly (`view`, torch 2.15)."""
    image = facts.get_operand(op, 0) if op.operator == "aten.convolution" else None
    return image is not None and image.producer is not None and has_one_channel(image)


def has_size_dependent_gradient(op: OpFacts, facts: GraphFacts) -> bool:
    """Return True for the backward of a convolution with dynamic sizes and a weight of one memory in both orders. The
    sizes of each call decide the kernel, and the kernel decides the gradient's strides (for fixed sizes,
    `frx_graph.capture.gradient_strides` corrects the fakes)."""
    if op.operator != "aten.convolution_backward":
        return False
    image, weight = facts.get_input_values(op)[1:3]
    one_memory = 1 in (weight.shape[1], math.prod(weight.shape[2:]))
    return one_memory and bool(image.dynamic_dims)


def has_one_channel(value: ValueFacts) -> bool:
    """Return True for an image of one channel, which is the same in plain and channels-last."""
    return len(value.shape) > 2 and value.shape[1] == 1


def reads_any_order(op: OpFacts, value: ValueFacts, inner: str) -> bool:
    """Return True if the operator reads `value` in any order, at about the same cost, and passes none on."""
    if requires_traced_strides(op):
        return False
    if op.operator in WRITING_COPIES:
        return True
    row = find_layout_operator(op)
    if row.role is LayoutRole.REDUCTION:
        return True
    if op.operator in MATRIX_PRODUCTS:
        # Either order of two dimensions is a layout that BLAS takes; a batch has to be outermost.
        return len(value.shape) == 2
    return inner == "inductor" and row.generated and row.operator != "any.unknown"
