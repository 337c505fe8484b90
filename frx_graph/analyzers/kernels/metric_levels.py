"""Grade the headline metrics of a kernel by the lines that labels use."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from frx_graph.analyzers.kernels import labels
from frx_graph.analyzers.kernels.coalescing import COALESCED_SECTORS, count_sectors
from frx_graph.analyzers.kernels.labels import compute_issue_utilization
from frx_graph.analyzers.kernels.speed_of_light import LATENCY_BELOW_PCT, NEAR_PEAK_PCT


class Level(enum.StrEnum):
    """Grade of a value by itself; the verdict decides if it matters."""

    BAD = "bad"
    DOUBTFUL = "doubtful"
    GOOD = "good"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, slots=True)
class MetricLevel:
    """One metric; `value` is in `unit`, None if not measured. `line` names the threshold for the grade."""

    name: str
    title: str
    value: float | None
    unit: str
    level: Level
    line: str


@dataclass(frozen=True, slots=True)
class _MetricLine:
    name: str
    title: str
    doubtful: float
    bad: float
    unit: str = "%"
    """Thresholds; if `bad` is below `doubtful`, low values are bad."""

    def grade_value(self, value: float | None) -> Level:
        if value is None:
            return Level.UNMEASURED
        sign = -1.0 if self.bad < self.doubtful else 1.0
        if sign * value >= sign * self.bad:
            return Level.BAD
        return Level.DOUBTFUL if sign * value >= sign * self.doubtful else Level.GOOD

    @property
    def text(self) -> str:
        sign = "<=" if self.bad < self.doubtful else ">="
        return f"[ !] {sign} {self.doubtful:g}, [!!] {sign} {self.bad:g}"


_LINES = (
    _MetricLine("dram_throughput", "DRAM throughput", LATENCY_BELOW_PCT, NEAR_PEAK_PCT),
    _MetricLine("sectors_per_load", "Sectors a global load", COALESCED_SECTORS + 0.1, 16.1, ""),
    _MetricLine("sectors_per_store", "Sectors a global store", COALESCED_SECTORS + 0.1, 16.1, ""),
    _MetricLine("l1_hit_rate", "L1 hit rate", labels.L1_HIT_PCT, 10.0),
    _MetricLine("l2_hit_rate", "L2 hit rate", labels.L2_HIT_PCT, 10.0),
    _MetricLine("achieved_occupancy", "Achieved occupancy", labels.OCCUPANCY_PCT, labels.ADEQUATE_OCCUPANCY_PCT),
    _MetricLine("theoretical_occupancy", "Theoretical occupancy", labels.OCCUPANCY_PCT, labels.ADEQUATE_OCCUPANCY_PCT),
    _MetricLine("issue_slots_busy", "Issue slots busy", labels.ISSUE_PCT, labels.ISSUE_PCT / 2),
    _MetricLine("eligible_warps", "Warps ready to issue", labels.ELIGIBLE_WARPS, labels.ELIGIBLE_WARPS / 4, ""),
)
_TENSOR_PIPE = _MetricLine("tensor_pipe", "Tensor pipe", labels.TENSOR_PIPE_PCT, labels.TENSOR_PIPE_PCT / 3)
_FIGURES = (("compute_throughput", "Compute throughput"), ("memory_throughput", "Memory throughput"))
"""Metrics of which neither high nor low is bad: the verdict comes from both."""


def add_derived_values(values: Mapping[str, float]) -> Mapping[str, float]:
    """Add values that follow from others, unless they were measured."""
    derived = {
        "sectors_per_load": count_sectors(values, "load"),
        "sectors_per_store": count_sectors(values, "store"),
        "issue_slots_busy": compute_issue_utilization(values),
    }
    return {**values, **{name: value for name, value in derived.items() if value is not None}}


def grade_metrics(kernel: str, values: Mapping[str, float]) -> tuple[MetricLevel, ...]:
    """Grade the headline metrics of the named kernel, those of the verdict first. The tensor pipe comes last, if the
    kernel multiplies matrices."""
    values = add_derived_values(values)
    figures = tuple(
        MetricLevel(name, title, values.get(name), "%", Level.GOOD if name in values else Level.UNMEASURED, "verdict")
        for name, title in _FIGURES
    )
    lines = (*_LINES, _TENSOR_PIPE) if labels.is_matrix_product(kernel, values) else _LINES
    return figures + tuple(
        MetricLevel(
            line.name, line.title, (value := values.get(line.name)), line.unit, line.grade_value(value), line.text
        )
        for line in lines
    )
