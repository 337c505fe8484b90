"""The operator table applied to a call: the call's row, and the values of the call that the row speaks of."""

from __future__ import annotations

import torch

from frx_graph.facts.graph_facts import OpFacts, ValueRef
from frx_graph.facts.operator_overload import argument_of, find_overload
from frx_graph.rules.layout_operator import POINTWISE, UNKNOWN, LayoutOperator, LayoutRole, layout_operators


def layout_operator(op: OpFacts) -> LayoutOperator:
    """The row of `op`. An in-place operator has that of its out-of-place form; one that is told which memory format to
    produce is a barrier."""
    if op.kwargs.get("memory_format") not in (None, torch.preserve_format):
        return UNKNOWN
    rows = layout_operators()
    row = rows.get(op.operator) or rows.get(op.operator.removesuffix("_"))
    if row is None:
        return POINTWISE if op.pointwise else UNKNOWN
    # `max` of two tensors is pointwise, `max` over a dimension is not.
    return POINTWISE if op.pointwise and row.role is LayoutRole.REDUCTION else row


def layout_operands(op: OpFacts, row: LayoutOperator) -> tuple[str, ...]:
    """The values among the operands whose layout counts, in argument order, each once."""
    if row.operands is None:
        return tuple(dict.fromkeys(op.inputs))
    names: list[str] = []
    for position in row.operands:
        argument = op.args[position] if position < len(op.args) else None
        items = argument if isinstance(argument, tuple) else (argument,)
        names.extend(item.name for item in items if isinstance(item, ValueRef))
    return tuple(dict.fromkeys(names))


def layout_results(op: OpFacts, row: LayoutOperator) -> tuple[str, ...]:
    """The results that carry the layout: not statistics, nor the gradients of weights."""
    if row.results is None:
        return op.outputs
    carrying = [
        name for position, name in zip(_result_positions(op), op.outputs, strict=False) if position in row.results
    ]
    return tuple(carrying)


def follows_operand(op: OpFacts) -> bool:
    """True where the result cannot have another layout than the first operand: views, in-place operators, `*_like`."""
    return op.view or in_place(op) or op.operator.endswith("_like")


def in_place(op: OpFacts) -> bool:
    """True if the result is the first operand itself."""
    return bool(op.mutates) and op.mutates[0] in op.inputs[:1]


def wants_one_layout(op: OpFacts) -> bool:
    """True for the backward of a pooling: where the gradient comes in another layout than the input that was saved, it
    copies the gradient, the saved input and its own result (seen on the CPU, torch 2.15)."""
    return op.operator.endswith("_backward") and "_pool" in op.operator


def _result_positions(op: OpFacts) -> list[int]:
    """Where in what the operator returns its `outputs` stand: a masked gradient is returned as None, and no value."""
    mask = argument_of(op, "output_mask")
    overload = find_overload(op.target)
    returned = len(overload._schema.returns) if overload is not None else len(op.outputs)
    if not isinstance(mask, tuple) or len(op.outputs) == returned:
        return list(range(returned))
    return [position for position in range(returned) if position >= len(mask) or mask[position]]
