"""Score both sides in four dimensions, 0..1, and decide which is better.

Measured components count if both sides have one, and static ones otherwise. Only components that both sides have count,
with equal weights. A dimension without evidence is not available, and the others weigh more. docs/compare.md has the
formulas.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from frx_graph.analyzers.comparison.matching import Winner
from frx_graph.analyzers.comparison.measured_time import MeasuredTime
from frx_graph.analyzers.comparison.ncu_diff import match_measured
from frx_graph.analyzers.comparison.score_component import Component, compute_mean
from frx_graph.analyzers.comparison.scores import score_compute, score_launches, score_memory, score_registers
from frx_graph.analyzers.comparison.static_cost import StaticCosts
from frx_graph.analyzers.layers import Layers

DimensionName = Literal["register_efficiency", "memory_efficiency", "compute_efficiency", "launch_efficiency"]
WEIGHTS: Mapping[DimensionName, float] = MappingProxyType(
    {"register_efficiency": 0.2, "memory_efficiency": 0.3, "compute_efficiency": 0.3, "launch_efficiency": 0.2}
)
SCORE_BAND = 0.02
"""Scores within this band are equal: percentages in two profiles of one kernel differ by a point or two."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension with the `components` that count: those of both sides if `available`, else those of the only side
    with any."""

    name: DimensionName
    weight: float
    score_a: float | None
    score_b: float | None
    available: bool
    components: tuple[Component, ...]

    @property
    def winner(self) -> Winner:
        """Return the side with the higher score."""
        return pick_higher(self.score_a, self.score_b) if self.available else Winner.UNKNOWN


def score_dimensions(a: Layers, b: Layers, *, whole_runs: bool = False) -> tuple[Dimension, ...]:
    """Score all four dimensions. `whole_runs` means that both were measured with all kernels, so bytes compare even if
    kernels do not match."""
    same_work = whole_runs
    if a.ncu is not None and b.ncu is not None:
        matching = match_measured(a.ncu, b.ncu)
        same_work |= matching.complete and all(pair.a.launches == pair.b.launches for pair in matching.pairs)
    return (
        _score_dimension("register_efficiency", score_registers(a, b)),
        _score_dimension("memory_efficiency", score_memory(a, b, same_work=same_work)),
        _score_dimension("compute_efficiency", score_compute(a, b)),
        _score_dimension("launch_efficiency", score_launches(a, b)),
    )


def average_scores(dimensions: Sequence[Dimension]) -> tuple[float, float] | None:
    """Average the available dimensions; None if there is none."""
    known = [
        (one.weight, one.score_a, one.score_b)
        for one in dimensions
        if one.available and one.score_a is not None and one.score_b is not None
    ]
    weight = sum(weight for weight, _, _ in known)
    return (sum(w * a for w, a, _ in known) / weight, sum(w * b for w, _, b in known) / weight) if known else None


def pick_higher(a: float | None, b: float | None) -> Winner:
    """Return the side with the higher score; a tie within `SCORE_BAND`."""
    if a is None or b is None:
        return Winner.UNKNOWN
    if abs(a - b) < SCORE_BAND:
        return Winner.TIE
    return Winner.A if a > b else Winner.B


def _score_dimension(name: DimensionName, groups: Sequence[Sequence[Component]]) -> Dimension:
    """Score a dimension from `groups` of components, best evidence first."""
    for group in groups:
        common = tuple(one for one in group if one.a is not None and one.b is not None)
        if common:
            scores = compute_mean(one.a for one in common), compute_mean(one.b for one in common)
            return Dimension(name, WEIGHTS[name], *scores, available=True, components=common)
    alone_a = next(filter(None, ([one for one in group if one.a is not None] for group in groups)), [])
    alone_b = next(filter(None, ([one for one in group if one.b is not None] for group in groups)), [])
    scores = compute_mean(one.a for one in alone_a), compute_mean(one.b for one in alone_b)
    components = tuple(one for group in groups for one in group if one in alone_a or one in alone_b)
    return Dimension(name, WEIGHTS[name], *scores, available=False, components=components)


class Basis(enum.StrEnum):
    """The evidence behind the verdict."""

    TIME = "time"
    MEASURED_SCORES = "measured_scores"
    """All scores come from counters."""
    STATIC_SCORES = "static_scores"
    """At least one score comes from source or PTX: it is likely, but not measured."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict. `reason` says why the winner is unknown; otherwise it is None. Scores cover the available
    dimensions, and are None without any. `predicted` are the costs of both sources, if both are known."""

    winner: Winner
    basis: Basis
    reason: str | None
    score_a: float | None
    score_b: float | None
    time: MeasuredTime | None
    predicted: StaticCosts | None = None

    @property
    def score_winner(self) -> Winner:
        """Return the winner by scores alone."""
        return pick_higher(self.score_a, self.score_b)


def decide_verdict(
    dimensions: Sequence[Dimension],
    time: MeasuredTime | None,
    predicted: StaticCosts | None = None,
    *,
    same_code: bool = False,
) -> Verdict:
    """Return the better side. Time comes before scores, even if it gives no answer. Without any counter, the predicted
    costs of both sources come before scores, and equal scores decide nothing, unless both sides have the same code."""
    scores = average_scores(dimensions)
    score_a, score_b = scores or (None, None)
    winner, basis, reason = pick_higher(score_a, score_b), Basis.MEASURED_SCORES, None
    if time is not None:
        winner, basis = time.winner, Basis.TIME
        if winner is Winner.UNKNOWN:
            basis = Basis.NOTHING
            reason = "the times do not agree: kernels have no counterpart, or are launched more often on one side"
            if not time.same_gpus:
                reason = "times were measured on GPUs that are not the same"
    elif scores is None:
        basis, reason = Basis.NOTHING, "there is no evidence that both sides have"
    else:
        known = [one for dimension in dimensions if dimension.available for one in dimension.components]
        if any({one.evidence_a, one.evidence_b} != {"ncu"} for one in known):
            basis = Basis.STATIC_SCORES
        if not same_code and not any("ncu" in (one.evidence_a, one.evidence_b) for one in known):
            winner, reason = _decide_statically(score_a, score_b, predicted)
    return Verdict(winner, basis, reason, score_a, score_b, time, predicted)


def _decide_statically(
    score_a: float | None, score_b: float | None, predicted: StaticCosts | None
) -> tuple[Winner, str | None]:
    """Return the better side without any measurement, or why there is none. Scores come from findings, so the least
    difference is one."""
    if predicted is not None and predicted.winner is not Winner.UNKNOWN:
        return predicted.winner, None
    if score_a is None or score_b is None or score_a == score_b:
        return Winner.UNKNOWN, "no difference shows without a measurement: measure both"
    return (Winner.A if score_a > score_b else Winner.B), None
