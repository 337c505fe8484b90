"""Explanation of the findings in one file as JSON: the document `frx_explain_v0`.

It holds measurements, and bounds derived from them. Unknown values are null, or listed under `missing_data` with the
command that would measure them. Names are printable, on one line.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.analyzers.kernels.metric_levels import Level
from frx_graph.analyzers.reconcile.confidence import ConfidenceLabel
from frx_graph.analyzers.reconcile.signal import Layer
from frx_graph.reports.render.document import Part
from frx_graph.reports.render.recommendation_part import ValidationPart
from frx_graph.rules.cuda_card import Severity


class DiagnosisPart(Part):
    """A label of all kernels together, with its confidence."""

    label: str
    title: str
    score: float = Field(description="0..1")
    confidence: float = Field(description="0..1")
    confidence_label: Literal["low", "medium", "high"]
    evidence: tuple[str, ...]
    kernels: tuple[str, ...]


class KeyMetricPart(Part):
    """A headline metric of the most promising kernel, with its threshold."""

    name: str
    title: str
    value: float | None = Field(description="null: not measured")
    unit: str
    level: Level
    line: str


class StaticFindingPart(Part):
    """A finding in a kernel's instructions or source, without a run."""

    layer: Literal["ptx", "source"]
    label: str
    title: str
    score: float | None = Field(description="0..1; null: source findings have severities")
    severity: Severity | None = Field(description="null: PTX findings have scores")
    confidence: float
    evidence: str
    kernel: str
    measured_as: tuple[str, ...] = Field(description="the report's name for it; empty: the same, or not in it")
    line: int | None = Field(description="line of the source; null: from PTX")
    fix: str | None = Field(description="null: see the recommendations")
    contradicted: bool = Field(description="true: the report contradicts it, on equal or better evidence")


class ReconciledPart(Part):
    """A joint diagnosis of one kernel from source and report, as in `frx reconcile`."""

    diagnosis: str
    title: str
    kernel: str
    measured_as: tuple[str, ...] = Field(description="the report's name for the kernel; empty: not in the report")
    confidence: ConfidenceLabel
    layers: tuple[Layer, ...]
    lines: tuple[int, ...] = Field(description="of the source")


class ScoredLabelPart(Part):
    """A label and its score."""

    label: str
    score: float = Field(description="0..1")


class TopKernelPart(Part):
    """A kernel. The first is the most promising."""

    rank: int
    kernel_name: str
    launches: int | None
    seconds: float | None
    runtime_share_pct: float | None = Field(description="null: not all kernels were timed")
    mfu_pct: float | None = Field(description="null: not counted, or the device's peak is unknown")
    roofline_region: str | None
    opportunity: Literal["high", "medium", "low", "none"] | None
    opportunity_score: float | None
    registers: int | None = Field(description="a thread's")


class RooflinePart(Part):
    """Roofline position of the most promising kernel."""

    kernel_name: str
    region: str
    compute_pct: float | None = Field(description="of the device's peak")
    memory_pct: float | None = Field(description="of the device's peak")
    memory_part: str | None = Field(description="the busiest part of the memory system")
    mfu_pct: float | None


class OccupancyPart(Part):
    """Occupancy of the most promising kernel, and its limiters."""

    kernel_name: str
    achieved_pct: float | None
    theoretical_pct: float | None
    limiters: dict[str, float] = Field(description="resource with the smallest block limit: share of the time")
    registers_per_thread: float | None
    threads_per_block: int | None


class TopRecommendationPart(Part):
    """A card, shortened to the essential steps."""

    id: str
    title: str
    priority: Literal["high", "medium", "low"]
    tier: int
    score: float
    estimated_speedup_pct_min: float | None = Field(description="null: no estimate")
    estimated_speedup_pct_max: float | None = Field(
        description="bound from the first kernel's counters; null: no bound"
    )
    kernels: tuple[str, ...]
    why: str
    actions: tuple[str, ...] = Field(description="the first two")
    validation_steps: tuple[ValidationPart, ...]
    risks: tuple[str, ...]


class MissingPart(Part):
    """Missing evidence that would help."""

    layer: Literal["ncu", "ptx", "source", "run"]
    reason: str
    command: str | None


class SourcePart(Part):
    """Lines of a file, with unprintable characters replaced."""

    path: str
    first_line: int
    total_lines: int
    lines: tuple[str, ...]


class ExplainDocument(Part):
    """Known and missing facts about the kernels of one file of evidence."""

    schema_: Literal["frx_explain_v0"] = Field(default="frx_explain_v0", alias="schema")
    evidence_file: str
    layers_available: tuple[Literal["source", "ptx", "ncu", "run"], ...]
    primary_diagnosis: DiagnosisPart | None = Field(description="null: the measurements show no bottleneck")
    diagnoses: tuple[DiagnosisPart, ...]
    key_metrics: tuple[KeyMetricPart, ...]
    static_findings: tuple[StaticFindingPart, ...]
    reconciled: tuple[ReconciledPart, ...] = Field(description="joint diagnoses, most certain first")
    ncu_bottlenecks: tuple[ScoredLabelPart, ...]
    top_kernels: tuple[TopKernelPart, ...]
    roofline: RooflinePart | None
    occupancy_summary: OccupancyPart | None
    top_recommendations: tuple[TopRecommendationPart, ...]
    missing_data: tuple[MissingPart, ...]
    reprofile_command: str
    source: SourcePart | None = Field(description="the file given with --source")
