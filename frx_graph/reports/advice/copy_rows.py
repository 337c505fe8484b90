"""The copies of a finding as people read them: those that differ only in their place in the graph are one row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from frx_graph.capture.captured_graph import Phase
from frx_graph.records import Basis, Copy, CopyKind, OperandRole


@dataclass(frozen=True, slots=True)
class CopyRow:
    """Copies of one operator, operand, kind and cause; `values` and `nodes` are distinct, in order."""

    operator: str
    role: OperandRole
    kind: CopyKind
    phase: Phase
    basis: Basis
    cause: str
    count: int
    bytes: int
    values: tuple[str, ...]
    nodes: tuple[str, ...]


def copy_rows(copies: Iterable[Copy]) -> tuple[CopyRow, ...]:
    """The rows, most bytes first."""
    grouped: dict[tuple[str, OperandRole, CopyKind, Phase, Basis, str], list[Copy]] = defaultdict(list)
    for copy in copies:
        grouped[copy.operator, copy.role, copy.kind, copy.phase, copy.basis, copy.cause].append(copy)
    rows = [
        CopyRow(
            *key,
            count=sum(copy.count for copy in members),
            bytes=sum(copy.bytes for copy in members),
            values=tuple(dict.fromkeys(copy.value for copy in members)),
            nodes=tuple(dict.fromkeys(copy.node for copy in members)),
        )
        for key, members in grouped.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))
