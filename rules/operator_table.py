"""The operator table, and which values of a call its rows speak of.

The rows are in `operators/*.yaml`, one file a family, one line an operator.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

import torch
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from frx_graph.errors import ContractError
from frx_graph.facts.graph_facts import OpFacts, ValueRef
from frx_graph.facts.operator_overload import argument_of, find_overload
from frx_graph.rules.layout_operator import POINTWISE, UNKNOWN, LayoutOperator, LayoutRole

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Family(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    operators: tuple[LayoutOperator, ...]


def parse_rows(text: str, source: str) -> tuple[LayoutOperator, ...]:
    """The rows in `text`; `source` is the name of its file.

    Raises `ContractError`, naming `source` and the operator, for malformed YAML and for missing or unknown keys.
    """
    try:
        document = yaml.load(text, Loader=_LOADER)
        return _Family.model_validate(document).operators
    except yaml.YAMLError as error:
        raise ContractError(f"{source} is not YAML: {str(error).splitlines()[0]}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the table"
        raise ContractError(f"{source}: {where}: {first['msg']}") from error


@functools.cache
def layout_operators() -> Mapping[str, LayoutOperator]:
    """Every row by its operator. Raises `ContractError` where a file is malformed or an operator has two rows."""
    folder = resources.files("frx_graph.rules") / "operators"
    found: dict[str, LayoutOperator] = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not entry.name.endswith(".yaml"):
            continue
        for row in parse_rows(entry.read_text(encoding="utf-8"), entry.name):
            if row.operator in found:
                raise ContractError(f"{entry.name}: {row.operator} has a row already")
            found[row.operator] = row
    return found


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
