"""Which side is better, by the best evidence there is: measured time, or else the scores."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.analyzers.comparison.matching import Winner
from frx_graph.analyzers.comparison.measured_time import MeasuredTime
from frx_graph.analyzers.comparison.scorecard import Dimension, higher_score, weighted_scores


class Basis(enum.StrEnum):
    """What decided."""

    TIME = "time"
    MEASURED_SCORES = "measured_scores"
    """All scores rest on counters."""
    STATIC_SCORES = "static_scores"
    """At least one score rests on source or PTX: what is likely, and was not measured."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` says why the winner is unknown, and is None where it is not. Scores are over the dimensions that are
    available, None where none is."""

    winner: Winner
    basis: Basis
    reason: str | None
    score_a: float | None
    score_b: float | None
    time: MeasuredTime | None

    @property
    def score_winner(self) -> Winner:
        """What the scores alone say."""
        return higher_score(self.score_a, self.score_b)


def verdict(dimensions: Sequence[Dimension], time: MeasuredTime | None) -> Verdict:
    """Time goes before all scores, also where it cannot be read: a score does not know better than a clock."""
    scores = weighted_scores(dimensions)
    score_a, score_b = (None, None) if scores is None else scores
    if time is not None:
        basis = Basis.NOTHING if time.winner is Winner.UNKNOWN else Basis.TIME
        return Verdict(time.winner, basis, _unreadable(time), score_a, score_b, time)
    if scores is None:
        reason = "there is no evidence that both sides have"
        return Verdict(Winner.UNKNOWN, Basis.NOTHING, reason, None, None, None)
    counters = all(
        "ncu" == one.evidence_a == one.evidence_b
        for dimension in dimensions
        if dimension.available
        for one in dimension.components
    )
    basis = Basis.MEASURED_SCORES if counters else Basis.STATIC_SCORES
    return Verdict(higher_score(score_a, score_b), basis, None, score_a, score_b, None)


def _unreadable(time: MeasuredTime) -> str | None:
    if time.winner is not Winner.UNKNOWN:
        return None
    if not time.same_gpus:
        return "times were measured on GPUs that are not the same"
    return "the times do not agree: kernels have no counterpart, or are launched more often on one side"
