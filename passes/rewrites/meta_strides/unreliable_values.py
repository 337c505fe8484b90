"""Find values of a traced graph whose strides may differ from their fakes'.

Why: a rewrite gives readers and callers the fakes' strides. If a value had other strides at run time, the former
strides are unknown, and the value is not rewritten. How: values are collected in the graph's order if operators and
fakes may choose different strides (`unreliable_strides.py` lists the operators), or if they follow such values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import make_ordered_strides
from frx_graph.facts.operator_families import CONVOLUTIONS, FOLDED_PRODUCTS, LAYOUT_COPIES
from frx_graph.passes.layouts.dimension_map import compute_view_strides, make_plain_order

_PRODUCTS = FOLDED_PRODUCTS | {"frx_graph.product"}
"""Operators whose results are plain for any operands."""
_ARITHMETIC = frozenset({"aten.add", "aten.sub", "aten.mul", "aten.div"})
"""Operators whose fakes are right about batches of one, if two tensors are given."""


def find_unreliable_meta_strides(facts: GraphFacts, inputs: Collection[str] = ()) -> frozenset[str]:
    """Return the names of the values whose strides may differ when the graph is run, `inputs` among them."""
    found = set(inputs)
    for op in facts.ops:
        if has_explicit_order(op) or op.operator in _PRODUCTS:
            continue
        operands = facts.get_input_values(op)
        follows = any(value.name in found for value in operands)
        for result in facts.get_output_values(op):
            if _is_weight_gradient(op, result, operands):
                if is_ambiguous(result.shape) and operands[1].name in found:
                    found.add(result.name)
                continue
            led = _follows_certain_operand(op, result, operands, found)
            if _is_misread_view(op, facts) or (not led and follows) or _is_mispredicted(op, result, operands, led):
                found.add(result.name)
    return frozenset(found)


def _is_weight_gradient(op: OpFacts, result: ValueFacts, operands: Sequence[ValueFacts]) -> bool:
    """Return True for a weight gradient: it has the weight's order, or the image's if both orders are one memory."""
    return op.operator == "aten.convolution_backward" and result.shape == operands[2].shape


def _is_misread_view(op: OpFacts, facts: GraphFacts) -> bool:
    if op.operator not in ("aten.view", "aten._unsafe_view"):
        return False
    source, result = facts.values[op.inputs[0]], facts.values[op.outputs[0]]
    return result.numel > 0 and compute_view_strides(source.shape, source.strides, result.shape) != result.strides


def _follows_certain_operand(
    op: OpFacts, result: ValueFacts, operands: Sequence[ValueFacts], doubtful: Collection[str]
) -> bool:
    """Return True for a pointwise result that follows operands of the same shape, all with certain strides."""
    if not op.pointwise or is_ambiguous(result.shape):
        return False
    told = [value for value in operands if value.shape == result.shape or not has_one_order(value.shape)]
    return any(value.shape == result.shape for value in told) and all(value.name not in doubtful for value in told)


def _is_mispredicted(op: OpFacts, result: ValueFacts, operands: Sequence[ValueFacts], led: bool) -> bool:
    """Return True if the operator may choose another order than its fake. Given new tensors alone, both make one."""
    if op.view or all(map(_is_plain, operands)):
        return False
    # Convolutions follow their images, so a weight of single pixels causes no doubt.
    first = operands[: 1 if op.operator in CONVOLUTIONS else 2]
    values = [result, *(value for value in first if len(value.shape) == len(result.shape))]
    knows_batches = op.operator in _ARITHMETIC and len(operands) == 2
    if not knows_batches and any(map(_has_odd_batch, values)):
        return True
    if op.operator == "aten.convolution":
        return _has_either_order(operands[0].shape)
    return not led and any(is_ambiguous(value.shape) for value in values)


def _is_plain(value: ValueFacts) -> bool:
    """Return True for the strides of a new tensor, those of dimensions of size 1 included."""
    return value.strides == make_ordered_strides(value.shape, make_plain_order(value.shape))


def _has_odd_batch(value: ValueFacts) -> bool:
    """Return True for a batch of one that is not outermost in memory, by its stride."""
    shape, strides = value.shape, value.strides
    return len(shape) > 2 and shape[0] == 1 and strides[0] < max(map(operator.mul, shape[1:], strides[1:]))


def _has_either_order(shape: Sequence[int]) -> bool:
    """Return True for images of one channel or one pixel, plain and channels-last at once. For others convolutions and
    their fakes agree (torch 2.15; found with 50,000 random ones)."""
    return shape[1] == 1 or math.prod(shape[2:]) == 1


def has_explicit_order(op: OpFacts) -> bool:
    """Return True for copies with an explicit order."""
    return op.operator in LAYOUT_COPIES and op.kwargs.get("memory_format") not in (None, torch.preserve_format)


def is_ambiguous(shape: Sequence[int]) -> bool:
    """Return True if dimensions of size 1 leave the order open: operators choose one, their fakes another. An example
    is a sum with a number after a convolution to one channel (torch 2.15)."""
    return len(shape) > 2 and 1 in shape[1:]


def has_one_order(shape: Sequence[int]) -> bool:
    """Return True if orders that keep the batch outermost differ in strides of dimensions of size 1 alone."""
    return sum(size != 1 for size in shape[1:]) <= 1
