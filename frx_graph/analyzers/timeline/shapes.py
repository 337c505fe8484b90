"""Whether the steps of a run compute on the same shapes: what compiles, tunes or captures for shapes starts anew with
others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from frx_graph.analyzers.timeline.program_parts import Part
from frx_graph.evidence.trace.events import Operand
from frx_graph.evidence.trace.steps import Steps

if TYPE_CHECKING:
    from frx_graph.analyzers.timeline.windows import Windows
    from frx_graph.analyzers.trace.analysis import TraceAnalysis

FEWEST_STEPS = 3
"""Of two, one change would be all there is."""


@dataclass(frozen=True, slots=True)
class ShapeChanges:
    """Of `steps` used ones, how many ran other operators, or the same on other shapes, than the step before."""

    steps: int
    changes: int

    @property
    def share(self) -> float:
        """Of the steps that have one before them."""
        return self.changes / (self.steps - 1)


def shape_changes(analysis: TraceAnalysis, windows: Windows, parts: Sequence[Part]) -> ShapeChanges | None:
    """`parts` is by operator; what loads a batch may see images of any size. None where shapes were not recorded in
    each of at least `FEWEST_STEPS` steps."""
    if len(windows.used) < FEWEST_STEPS:
        return None
    steps = Steps(windows.used)
    calls: list[Counter[tuple[str, tuple[Operand | None, ...]]]] = [Counter() for _ in windows.used]
    for operator, part in zip(analysis.tree.operators, parts, strict=True):
        if operator.operands is None or part is Part.LOADING:
            continue
        step = steps.at(operator.start_ns)
        if step is not None:
            calls[step][operator.name, operator.operands] += 1
    if not all(calls):
        return None
    return ShapeChanges(len(calls), sum(one != before for before, one in pairwise(calls)))
