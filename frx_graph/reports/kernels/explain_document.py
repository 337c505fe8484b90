"""Explanation of the findings in one file as JSON: the document `frx_explain_v0`.

It holds measurements, and bounds that follow from them. Unknown values are null, or listed under `missing_data` with
the command that would measure them. Names are printable, on one line.
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
    """A label, of all kernels together, with how sure it is."""

    label: str
    title: str
    score: float = Field(description="0..1")
    confidence: float = Field(description="0..1")
    confidence_label: Literal["low", "medium", "high"]
    evidence: tuple[str, ...]
    kernels: tuple[str, ...]


class KeyMetricPart(Part):
    """A headline metric of the most promising kernel, beside the line that it is judged by."""

    name: str
    title: str
    value: float | None = Field(description="null: not measured")
    unit: str
    level: Level
    line: str


class StaticFindingPart(Part):
    """What a kernel's instructions, or its source, show without its having run."""

    layer: Literal["ptx", "source"]
    label: str
    title: str
    score: float | None = Field(description="0..1; null: source has severities")
    severity: Severity | None = Field(description="null: PTX has scores")
    confidence: float
    evidence: str
    kernel: str
    measured_as: tuple[str, ...] = Field(description="what the report calls it; empty: it is not in it, or is no other")
    line: int | None = Field(description="of the source; null: of PTX")
    fix: str | None = Field(description="null: the recommendations say it")
    contradicted: bool = Field(description="true: the report says otherwise, and knows as well or better")


class ReconciledPart(Part):
    """What the source and the report say together of one kernel, as `frx reconcile` has it."""

    diagnosis: str
    title: str
    kernel: str
    measured_as: tuple[str, ...] = Field(description="what the report calls it; empty: it is not in it")
    confidence: ConfidenceLabel
    layers: tuple[Layer, ...]
    lines: tuple[int, ...] = Field(description="of the source")


class ScoredLabelPart(Part):
    """A label and its score."""

    label: str
    score: float = Field(description="0..1")


class TopKernelPart(Part):
    """A kernel; the first is the one to look at first."""

    rank: int
    kernel_name: str
    launches: int | None
    seconds: float | None
    runtime_share_pct: float | None = Field(description="null: not all kernels were timed")
    mfu_pct: float | None = Field(description="null: not counted, or the device's peak is not known")
    roofline_region: str | None
    opportunity: Literal["high", "medium", "low", "none"] | None
    opportunity_score: float | None
    registers: int | None = Field(description="a thread's")


class RooflinePart(Part):
    """Where the most promising kernel stands."""

    kernel_name: str
    region: str
    compute_pct: float | None = Field(description="of the device's peak")
    memory_pct: float | None = Field(description="of the device's peak")
    memory_part: str | None = Field(description="the part of the memory system that is busiest")
    mfu_pct: float | None


class OccupancyPart(Part):
    """What occupancy the most promising kernel has, and what limits it."""

    kernel_name: str
    achieved_pct: float | None
    theoretical_pct: float | None
    limiters: dict[str, float] = Field(description="resource with the smallest block limit: share of the time")
    registers_per_thread: float | None
    threads_per_block: int | None


class TopRecommendationPart(Part):
    """A card, as short as it can be acted on."""

    id: str
    title: str
    priority: Literal["high", "medium", "low"]
    tier: int
    score: float
    estimated_speedup_pct_min: float | None = Field(description="null: nothing is promised")
    estimated_speedup_pct_max: float | None = Field(
        description="bound from the first kernel's counters; null: no bound"
    )
    kernels: tuple[str, ...]
    why: str
    actions: tuple[str, ...] = Field(description="the first two")
    validation_steps: tuple[ValidationPart, ...]
    risks: tuple[str, ...]


class MissingPart(Part):
    """Evidence that would tell more."""

    layer: Literal["ncu", "ptx", "source", "run"]
    reason: str
    command: str | None


class SourcePart(Part):
    """Lines of a file, as they stand there but for what cannot be printed."""

    path: str
    first_line: int
    total_lines: int
    lines: tuple[str, ...]


class ExplainDocument(Part):
    """What is known, and what is not, about the kernels of one file of evidence."""

    schema_: Literal["frx_explain_v0"] = Field(default="frx_explain_v0", alias="schema")
    evidence_file: str
    layers_available: tuple[Literal["source", "ptx", "ncu", "run"], ...]
    primary_diagnosis: DiagnosisPart | None = Field(
        description="null: nothing that was measured holds the kernels back"
    )
    diagnoses: tuple[DiagnosisPart, ...]
    key_metrics: tuple[KeyMetricPart, ...]
    static_findings: tuple[StaticFindingPart, ...]
    reconciled: tuple[ReconciledPart, ...] = Field(description="of source and report; the surest first")
    ncu_bottlenecks: tuple[ScoredLabelPart, ...]
    top_kernels: tuple[TopKernelPart, ...]
    roofline: RooflinePart | None
    occupancy_summary: OccupancyPart | None
    top_recommendations: tuple[TopRecommendationPart, ...]
    missing_data: tuple[MissingPart, ...]
    reprofile_command: str
    source: SourcePart | None = Field(description="what was given with --source")
