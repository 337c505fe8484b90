"""Advice cards in documents, and the command to measure again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal

from pydantic import ConfigDict, Field

from frx_graph.reports.render.document import FinitePart, read_from
from frx_graph.rules.recommendation_card import Direction


class ValidationPart(FinitePart):
    """A metric to measure again."""

    metric: str = read_from("step.metric")
    label: str = read_from("step.label")
    direction: Direction = read_from("step.direction")
    threshold_good: float | None = read_from("step.threshold_good")
    expected: str = read_from("step.expected")
    current_value: float | None = read_from("current", "null: not measured")


class RecommendationPart(FinitePart):
    """An advice card that applies here."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    id: str = read_from("card.id")
    title: str = read_from("card.title")
    priority: Literal["high", "medium", "low"]
    score: float
    tier: int = read_from(
        "card.tier", "0 changes a setting, such as a launch configuration, 1 the code, 2 the algorithm"
    )
    confidence: float = Field(description="0..1: the label's evidence, reduced if the verdict is unknown")
    estimated_speedup_pct_min: float | None = Field(default=None, description="null: no estimate")
    estimated_speedup_pct_max: float | None = read_from(
        "most_speedup_pct", "bound from counters for the kernel; null: no bound"
    )
    effort: str = read_from("card.effort")
    risk: str = read_from("card.risk")
    category: str = read_from("card.category")
    why: str = read_from("card.why")
    actions: tuple[str, ...] = read_from("card.actions")
    validation_steps: tuple[ValidationPart, ...] = read_from("checks")
    risks: tuple[str, ...] = read_from("card.risks")
    triggered_by: tuple[str, ...]
    kernels: tuple[str, ...]


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


def build_rerun_command(label: str | None, measured: Sequence[str] = ("--", *YOUR_PROGRAM)) -> str:
    """Return the command for the primary bottleneck `label`. `measured` holds the filters of the measurement, `--`, and
    the program."""
    return shlex.join(("frx", "profile", "--preset", _PRESETS.get(label or "", "full"), *measured))
