"""Recognise the causal mask: each query sees the keys up to its own position and no other.

The decision rests on the operators that make the mask. They must be a constant, cut by `triu` or `tril` into a part up
to the diagonal and a part above it, and operators that treat all elements of a part alike.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueRef
from frx_graph.facts.operator_families import LAYOUT_COPIES
from frx_graph.passes.attention_walks import FILLED, MAX_STEPS
from frx_graph.passes.copies.view_chain import is_view

Number: TypeAlias = int | float
Parts: TypeAlias = tuple[Number, Number]
"""The number at every position up to the diagonal, and the number at every position above it."""

_ONES = frozenset({"aten.ones", "aten.ones_like", "aten.new_ones"})
_ZEROS = frozenset({"aten.zeros", "aten.zeros_like", "aten.new_zeros"})
_IN_PLACE = frozenset(
    {"aten.view", "aten._unsafe_view", "aten.unsqueeze", "aten.squeeze", "aten.expand", "aten.alias", "aten.detach"}
)
"""Views that leave the last two dimensions where they are if these keep their sizes."""
_BINARY: Mapping[str, Callable[[Number, Number], Number]] = {
    **{f"aten.{name}": getattr(operator, name) for name in ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge")},
    "aten.rsub": lambda a, b: b - a,
    "aten.logical_and": lambda a, b: bool(a) and bool(b),
    "aten.logical_or": lambda a, b: bool(a) or bool(b),
}
_NOT = frozenset({"aten.logical_not", "aten.bitwise_not"})


def is_causal(facts: GraphFacts, mask: str, keeps: bool) -> bool:
    """Return True if the boolean `mask` is causal, where True means "takes part" if `keeps`, else "is hidden"."""
    return _is_square(facts, mask) and _find_parts(facts, mask, 0) == ((1, 0) if keeps else (0, 1))


def is_causal_bias(facts: GraphFacts, bias: str, hidden_from: float) -> bool:
    """Return True if adding `bias` hides, by `hidden_from` or less, what the causal mask hides, and no more."""
    parts = _find_parts(facts, bias, 0)
    return _is_square(facts, bias) and parts is not None and parts[0] == 0 and parts[1] <= hidden_from


def _is_square(facts: GraphFacts, value: str) -> bool:
    shape = facts.values[value].shape
    return len(shape) >= 2 and shape[-1] == shape[-2] > 1


def _find_parts(facts: GraphFacts, value: str, depth: int) -> Parts | None:
    """Return the numbers that the two parts of `value` hold; None unless each is known to hold one number."""
    op = facts.get_producer(value)
    if op is None or depth > MAX_STEPS or facts.values[value].mutated:
        return None
    if op.kwargs.get("alpha", 1) != 1 or "alpha" in op.symbolic:
        return None
    made = _evaluate_operator(facts, op, depth)
    if made is not None and facts.values[value].dtype is torch.bool:
        return bool(made[0]), bool(made[1])
    return made


def _evaluate_operator(facts: GraphFacts, op: OpFacts, depth: int) -> Parts | None:
    def find_parts_at(position: int) -> Parts | None:
        if position >= len(op.args) or position in op.symbolic:
            return None
        argument = op.args[position]
        if not isinstance(argument, ValueRef):
            return (argument, argument) if isinstance(argument, (int, float)) else None
        parts = _find_parts(facts, argument.name, depth + 1)
        if parts is None:
            return None
        # Views are checked elsewhere; another operator may broadcast the parts.
        aligned = is_view(op) or facts.values[argument.name].shape[-2:] == facts.values[op.outputs[0]].shape[-2:]
        return parts if aligned or parts[0] == parts[1] else None

    if op.operator in FILLED:
        return find_parts_at(FILLED[op.operator])
    if op.operator in _ONES or op.operator in _ZEROS:
        return (1, 1) if op.operator in _ONES else (0, 0)
    first = find_parts_at(0)
    if op.operator in ("aten.triu", "aten.tril"):
        diagonal = op.args[1] if len(op.args) > 1 else op.kwargs.get("diagonal", 0)
        upper = op.operator == "aten.triu"
        if first is None or first[0] != first[1] or op.symbolic or diagonal != (1 if upper else 0):
            return None
        return (0, first[1]) if upper else (first[0], 0)
    if op.operator in LAYOUT_COPIES or (is_view(op) and _keeps_diagonal(facts, op)):
        return first
    if op.operator in _NOT:
        # `bitwise_not` of integers is something else.
        logical = op.operator == "aten.logical_not" or facts.values[op.inputs[0]].dtype is torch.bool
        return (not first[0], not first[1]) if first is not None and logical else None
    second = find_parts_at(1)
    if op.operator in ("aten.masked_fill", "aten.where"):
        third = find_parts_at(2)
        if first is None or second is None or third is None:
            return None
        hide, fill, keep = (second, third, first) if op.operator == "aten.masked_fill" else (first, second, third)
        return (fill[0] if hide[0] else keep[0]), (fill[1] if hide[1] else keep[1])
    if op.operator in _BINARY and first is not None and second is not None:
        combine = _BINARY[op.operator]
        return combine(first[0], second[0]), combine(first[1], second[1])
    return None


def _keeps_diagonal(facts: GraphFacts, view: OpFacts) -> bool:
    """Return True if every element stays on its side of the diagonal."""
    if view.operator == "aten.slice":
        start, step = (view.args[position] if position < len(view.args) else None for position in (2, 4))
        return start in (0, None) and step in (1, None) and view.symbolic.isdisjoint((2, 4))
    before, after = facts.values[view.inputs[0]].shape, facts.values[view.outputs[0]].shape
    return view.operator in _IN_PLACE and before[-2:] == after[-2:]
