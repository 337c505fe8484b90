"""Decide which operators of a functional graph can take other strides than those that they were traced with."""

from __future__ import annotations

import math

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.operator_families import MATRIX_PRODUCTS, WRITING_COPIES
from frx_graph.facts.operator_overload import draws_random_numbers, find_overload
from frx_graph.passes.layouts.operator_layout import layout_operator
from frx_graph.rules.layout_operator import LayoutRole

_TOLD_PLACES = frozenset(
    {"aten.as_strided", "aten.as_strided_", "aten.as_strided_copy", "aten.as_strided_scatter", "aten.set_"}
)
_TOLD_STRIDES = _TOLD_PLACES | {
    "aten.resize",
    "aten.resize_",
    "aten.sym_storage_offset",
    "aten.sym_stride",
    "aten.view_as_complex",
    "aten.view_as_real",
}


def is_told_strides(op: OpFacts) -> bool:
    """Return True for operators that must be given their traced strides: those with explicit strides or storage, that
    write into an operand, that draw random numbers in memory order, or that are unknown."""
    if sees_strides(op):
        return True
    if op.operator in WRITING_COPIES:
        return False
    overload = find_overload(op.target)
    return overload is None or overload._schema.is_mutable or draws_random_numbers(overload, op.args, op.kwargs)


def sees_strides(op: OpFacts) -> bool:
    """Return True for operators whose values depend on strides: they take or return strides or storage, or are
    unknown."""
    return op.opaque or op.operator in _TOLD_STRIDES or op.target == "aten.view.dtype"


def is_told_places(op: OpFacts) -> bool:
    """Return True for operators that address an operand's memory by offsets, which are wrong for a view elsewhere."""
    return op.operator in _TOLD_PLACES


def reads_ambiguous_image(op: OpFacts, facts: GraphFacts) -> bool:
    """Return True for a convolution of one computed channel, which is in both layouts at once. Strides without meaning
    decide which one torch runs, and fakes predict them wrongly (`view`, torch 2.15)."""
    if op.operator != "aten.convolution" or not isinstance(op.args[0], ValueRef):
        return False
    image = facts.values[op.args[0].name]
    return image.producer is not None and has_one_channel(image)


def gradient_lies_by_size(op: OpFacts, facts: GraphFacts) -> bool:
    """Return True for the backward of a convolution with dynamic sizes and a weight of one memory in both orders. The
    sizes of each call decide the kernel, and the kernel decides the gradient's strides (for fixed sizes,
    `frx_graph.capture.gradient_strides` corrects the fakes)."""
    if op.operator != "aten.convolution_backward":
        return False
    image, weight = facts.input_values(op)[1:3]
    one_memory = 1 in (weight.shape[1], math.prod(weight.shape[2:]))
    return one_memory and bool(image.dynamic_dims)


def has_one_channel(value: ValueFacts) -> bool:
    """Return True for an image of one channel, which is the same in plain and channels-last."""
    return len(value.shape) > 2 and value.shape[1] == 1


def reads_any_order(op: OpFacts, value: ValueFacts, inner: str) -> bool:
    """Return True if the operator reads `value` in any order, at about the same cost, and passes none on."""
    if is_told_strides(op):
        return False
    if op.operator in WRITING_COPIES:
        return True
    row = layout_operator(op)
    if row.role is LayoutRole.REDUCTION:
        return True
    if op.operator in MATRIX_PRODUCTS:
        # Either order of two dimensions is a layout that BLAS takes; a batch has to be outermost.
        return len(value.shape) == 2
    return inner == "inductor" and row.generated and row.operator != "any.unknown"
