"""A card of advice as it stands in documents: the same for counters, PTX and source."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.analyzers.kernels.recommendations import Check, Recommendation
from frx_graph.reports.render.document import FinitePart
from frx_graph.rules.recommendation_card import Direction


class ValidationPart(FinitePart):
    """What to measure again."""

    metric: str
    label: str
    direction: Direction
    threshold_good: float | None
    expected: str
    current_value: float | None = Field(description="null: not measured")


class RecommendationPart(FinitePart):
    """A card, as it applies here."""

    id: str
    title: str
    priority: Literal["high", "medium", "low"]
    score: float
    tier: int = Field(description="0 changes a setting, such as a launch's, 1 the code, 2 the algorithm")
    confidence: float = Field(description="0..1: the label's evidence, less where the verdict is unknown")
    estimated_speedup_pct_min: float | None = Field(description="null: nothing is promised")
    estimated_speedup_pct_max: float | None = Field(description="bound from counters for the kernel; null: no bound")
    effort: str
    risk: str
    category: str
    why: str
    actions: tuple[str, ...]
    validation_steps: tuple[ValidationPart, ...]
    risks: tuple[str, ...]
    triggered_by: tuple[str, ...]
    kernels: tuple[str, ...]


def recommendation_part(found: Recommendation) -> RecommendationPart:
    """What a document says of it."""
    card = found.card
    return RecommendationPart(
        id=card.id,
        title=card.title,
        priority=found.priority,
        score=found.score,
        tier=card.tier,
        confidence=found.confidence,
        estimated_speedup_pct_min=None,
        estimated_speedup_pct_max=found.most_speedup_pct,
        effort=card.effort.value,
        risk=card.risk.value,
        category=card.category,
        why=card.why,
        actions=card.actions,
        validation_steps=tuple(map(_check, found.checks)),
        risks=card.risks,
        triggered_by=found.triggered_by,
        kernels=found.kernels,
    )


def _check(check: Check) -> ValidationPart:
    step = check.step
    return ValidationPart(
        metric=step.metric,
        label=step.label,
        direction=step.direction,
        threshold_good=step.threshold_good,
        expected=step.expected,
        current_value=check.current,
    )
