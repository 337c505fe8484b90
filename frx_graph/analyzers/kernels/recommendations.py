"""Choose the recommendation cards for bottlenecks, with the measured metrics of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from frx_graph.records import Effort
from frx_graph.rules.recommendation_card import RecommendationCard, Step, index_cards_by_label

LABEL_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "memory_bandwidth_bound": "Memory bandwidth saturated",
        "warp_stall_memory": "Warps wait for memory",
        "warp_stall_sync": "Warps wait for each other",
        "l1_cache_thrashing": "L1 cache thrashing",
        "l2_cache_thrashing": "L2 cache thrashing",
        "uncoalesced_access": "Uncoalesced global access",
        "tensor_core_underutilized": "Tensor cores under-utilized",
        "occupancy_limited": "Occupancy limited by the grid",
        "occupancy_limited_by_registers": "Occupancy limited by registers",
        "occupancy_limited_by_shared_memory": "Occupancy limited by shared memory",
        "occupancy_limited_by_block_size": "Occupancy limited by the block's size",
        "low_warp_scheduler_utilization": "Too few warps ready to issue",
        "low_issue_efficiency": "Issue slots idle",
        "insufficient_ncu_data": "Too few metrics to tell",
        "ptx_register_spills": "Registers spill to local memory",
        "ptx_register_pressure": "Register pressure",
        "ptx_global_memory_heavy": "Many global memory instructions",
        "ptx_fp64_usage": "Double precision arithmetic",
        "ptx_branch_divergence_risk": "Branches that may diverge",
        "input_bound": "Waiting for input",
        "copy_bound": "Copying from the host",
        "sync_bound": "Waiting for devices",
        "communication_bound": "Waiting for communication",
        "launch_bound": "Launching small kernels",
        "host_bound": "Waiting for the host",
        "layout_churn": "Converting layouts",
        "memory_pressure": "Memory nearly full",
        "shape_instability": "Shapes that change",
        "underutilized_gpu": "Devices mostly idle",
        "insufficient_telemetry": "Too little was recorded",
    }
)


def get_label_title(label: str) -> str:
    """Return a label's title; the label itself if it has none."""
    return LABEL_TITLES.get(label, label)


_HIGH, _MEDIUM = 0.5, 0.25
_EFFORTS = tuple(Effort)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """A label of all kernels together; `score` is 0..1, the kernels' scores weighted by their share of the time.
    `values` come from the kernel with the largest weight."""

    label: str
    score: float
    evidence: tuple[str, ...]
    kernels: tuple[str, ...]
    values: Mapping[str, float]
    most_speedup_pct: float | None
    confidence: float
    """Value of 0..1, from the kernel with the largest weight."""


@dataclass(frozen=True, slots=True)
class Check:
    """A step of a card's validation; `current` is None if the metric was not measured."""

    step: Step
    current: float | None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A recommended card. `most_speedup_pct` bounds its effect on the named kernels, from their counters; None if
    unbounded."""

    card: RecommendationCard
    score: float
    confidence: float
    priority: Literal["high", "medium", "low"]
    triggered_by: tuple[str, ...]
    kernels: tuple[str, ...]
    checks: tuple[Check, ...]
    most_speedup_pct: float | None


def recommend_cards(bottlenecks: Sequence[Bottleneck]) -> tuple[Recommendation, ...]:
    """Return the cards that these bottlenecks call for, each once, the most promising first."""
    calls: dict[str, tuple[RecommendationCard, list[Bottleneck]]] = {}
    for bottleneck in bottlenecks:
        for card in index_cards_by_label().get(bottleneck.label, ()):
            if all(condition.holds(bottleneck.values) for condition in card.when):
                calls.setdefault(card.id, (card, []))[1].append(bottleneck)
    found = [_recommend_card(card, callers) for card, callers in calls.values()]
    return tuple(sorted(found, key=_rank))


def _rank(one: Recommendation) -> tuple[float, int, int, str]:
    # The cards of the label that costs most come first, the easiest of them before the others.
    return -one.score, one.card.tier, _EFFORTS.index(one.card.effort), one.card.id


def _recommend_card(card: RecommendationCard, callers: Sequence[Bottleneck]) -> Recommendation:
    strongest = max(callers, key=lambda bottleneck: bottleneck.score)
    score = card.weight * strongest.score
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
