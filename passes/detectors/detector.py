"""What every detector file offers to the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from frx_graph.passes.analysis import Analysis
from frx_graph.records import Finding, Refusal


@dataclass(frozen=True, slots=True)
class Detector:
    """One rule's code, its name (the defect, in the field's terms) and the function that looks for it."""

    rule: str
    name: str
    detect: Callable[[Analysis], Iterable[Finding | Refusal]]
