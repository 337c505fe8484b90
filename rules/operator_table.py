"""The operator table.

The rows are in `operators/*.yaml`, one file a family, one line an operator.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from frx_graph.errors import ContractError
from frx_graph.rules.layout_operator import LayoutOperator

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
