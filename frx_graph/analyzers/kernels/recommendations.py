"""From bottlenecks to cards: which advice their labels call for, with what was measured of each metric it speaks of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from frx_graph.rules.recommendation_card import RecommendationCard, Step, cards_by_label

_HIGH, _MEDIUM = 0.5, 0.25
_PREFERRED = 0.1
"""Where scores are about equal, a change of the launch comes before one of the kernel, and that before an algorithm."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """A label of all kernels together; `score` is 0..1, its kernels' scores by their share of the time. `values` are
    those of the kernel that it weighs most in."""

    label: str
    score: float
    evidence: tuple[str, ...]
    kernels: tuple[str, ...]
    values: Mapping[str, float]
    most_speedup_pct: float | None
    confidence: float
    """0..1, of the kernel that it weighs most in."""


@dataclass(frozen=True, slots=True)
class Check:
    """A step of a card's validation; `current` is None where the metric was not measured."""

    step: Step
    current: float | None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A card that something calls for. `most_speedup_pct` bounds what it can do for the kernels named, from their
    counters; None where nothing bounds it."""

    card: RecommendationCard
    score: float
    confidence: float
    priority: Literal["high", "medium", "low"]
    triggered_by: tuple[str, ...]
    kernels: tuple[str, ...]
    checks: tuple[Check, ...]
    most_speedup_pct: float | None


def recommendations(bottlenecks: Sequence[Bottleneck]) -> tuple[Recommendation, ...]:
    """The cards that these call for, each once, the most promising first."""
    calls: dict[str, tuple[RecommendationCard, list[Bottleneck]]] = {}
    for bottleneck in bottlenecks:
        for card in cards_by_label().get(bottleneck.label, ()):
            calls.setdefault(card.id, (card, []))[1].append(bottleneck)
    found = [_recommendation(card, callers) for card, callers in calls.values()]
    return tuple(sorted(found, key=lambda one: (-(one.score - _PREFERRED * one.card.tier), one.card.id)))


def _recommendation(card: RecommendationCard, callers: Sequence[Bottleneck]) -> Recommendation:
    strongest = max(callers, key=lambda bottleneck: bottleneck.score)
    score = strongest.score
    return Recommendation(
        card=card,
        score=score,
        confidence=strongest.confidence,
        priority="high" if score >= _HIGH else "medium" if score >= _MEDIUM else "low",
        triggered_by=tuple(bottleneck.label for bottleneck in callers),
        kernels=strongest.kernels,
        checks=tuple(Check(step, strongest.values.get(step.value)) for step in card.validation),
        most_speedup_pct=strongest.most_speedup_pct,
    )
