"""A card of advice as it stands in documents: the same for counters, PTX and source."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
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


YOUR_PROGRAM = ("./your_app",)
_PRESETS = {
    "memory_bandwidth_bound": "memory",
    "l1_cache_thrashing": "memory",
    "l2_cache_thrashing": "memory",
    "uncoalesced_access": "memory",
    "tensor_core_underutilized": "tensor",
    "warp_stall_memory": "stalls",
    "warp_stall_sync": "stalls",
    "low_warp_scheduler_utilization": "stalls",
    "low_issue_efficiency": "stalls",
    "occupancy_limited": "occupancy",
    "occupancy_limited_by_registers": "occupancy",
    "occupancy_limited_by_shared_memory": "occupancy",
    "occupancy_limited_by_block_size": "occupancy",
}


def rerun_command(label: str | None, measured: Sequence[str] = ("--", *YOUR_PROGRAM)) -> str:
    """The command for the primary bottleneck `label`; `measured` are the filters that the program was measured with,
    `--`, and the program."""
    return shlex.join(("frx", "profile", "--preset", _PRESETS.get(label or "", "full"), *measured))
