"""One layout copy that a real step made, with the place in the program that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from frx_graph.capture.call_site import CallSite
from frx_graph.capture.captured_graph import Phase

ObservedKind: TypeAlias = Literal["explicit", "reshape", "operator", "reorder"]
"""How the copy came about: the program asked for it, a reshape could not be a view, an operator copied an operand
inside, a library converted to a format of its own."""
ObservedRole: TypeAlias = Literal["input", "weight", "output"]
OUTSIDE = "<outside of compiled graphs>"
"""The operator of copies that a compiled program makes, but none of its compiled graphs."""


@dataclass(frozen=True, slots=True)
class ObservedCopy:
    """`operator` is the ATen operator that made the copy, or the composite one that it is part of (`aten.reshape`,
    `aten.matmul`). `bytes` is traffic, read plus written. `source` and `target` name the two formats: oneDNN tags, or
    stride lists."""

    operator: str
    kind: ObservedKind
    role: ObservedRole
    site: CallSite
    phase: Phase
    shape: tuple[int, ...]
    bytes: int
    source: str
    target: str
