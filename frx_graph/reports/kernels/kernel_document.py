"""Findings in an Nsight Compute export as JSON: the document `frx_ncu_v1`, under the mode "ncu"."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.analyzers.kernels.analysis import KernelAnalysis
from frx_graph.analyzers.kernels.metric_levels import add_derived_values
from frx_graph.analyzers.kernels.speed_of_light import compute_warp_stalls, judge_speed_of_light
from frx_graph.evidence.ncu.launch import Form, NcuExport
from frx_graph.evidence.ncu.presets import PRESETS
from frx_graph.reports.render.document import Part, TextOrNull, WrittenPart, read_from
from frx_graph.reports.render.recommendation_part import RecommendationPart


class BottleneckPart(Part):
    """A label of all kernels together."""

    label: str
    score: float = Field(description="0..1: scores of the kernels by their share of the time")
    confidence: float = Field(description="0..1: less if some counters for it were not measured")
    evidence: tuple[str, ...]
    kernels: tuple[str, ...] = Field(description="the most affected kernels")


class OpportunityPart(Part):
    """A kernel and its possible gain."""

    kernel_name: str = read_from("kernel.kernel")
    runtime_share_pct: float | None
    mfu_pct: float | None
    roofline_region: str
    from_datasheet: bool = Field(description="true: mfu_pct or roofline_region use the peaks of a data sheet")
    opportunity: Literal["high", "medium", "low", "none"]
    opportunity_score: float = read_from("score")


class AttributionPart(Part):
    """All kernels, the most promising first."""

    has_runtime_share: bool = Field(description="false: scores of different kernels do not compare")
    top_opportunities: tuple[OpportunityPart, ...]


class LabelPart(Part):
    """A bottleneck of one kernel."""

    label: str
    score: float
    evidence: str


class RulePart(Part):
    """Advice of one of Nsight Compute's own rules."""

    name: str
    section: str
    kind: str
    text: str
    speedup_pct: float | None = Field(description="Nsight Compute's estimate; null: no estimate")
    speedup_kind: str = Field(description="global: of the kernel; local: of the part that the rule covers; empty: none")


class GpuPart(WrittenPart):
    """Figures from the counters and the GPU's limits and peaks; null: not measured, or unknown for that GPU."""

    name: str = read_from("profile.name")
    known_by: str = Field(description="source of the GPU's name: the option or the file")
    theoretical_occupancy_pct: float | None = read_from("occupancy_pct", "by the limits of the architecture")
    limiters: tuple[str, ...] = Field(description="limiters that keep theoretical_occupancy_pct below full")
    limits_source: str | None = read_from("profile.architecture.limits_source")
    peak_pct: dict[str, float] = Field(
        description="arithmetic over the data sheet's peak of the format: float32, or fp16, bf16, tf32 on tensor cores"
    )
    mfu_pct: float | None = Field(description="share of the time for all arithmetic at these peaks; null: unknown")
    flops_per_byte: float | None = Field(description="all arithmetic over DRAM traffic")
    ridge_flops_per_byte: float | None = read_from("ridge", "intensity at which both take equally long")
    dram_pct: float | None = Field(description="DRAM traffic over the data sheet's bandwidth")
    arithmetic_roof_pct: float = Field(
        default=100.0, description="peaks of peak_pct and mfu_pct over the data sheet's; over 100: a kernel beat those"
    )
    dram_roof_pct: float = Field(default=100.0, description="bandwidth of dram_pct over the data sheet's")
    dram_bytes_per_launch: float | None = read_from("launch_bytes")
    l2_bytes: int | None = read_from("profile.l2_bytes", "capacity of the L2 cache")
    peaks_source: str | None = read_from("profile.product.source", default=None)


class KernelPart(WrittenPart):
    """One kernel: all its launches on one device together, weighted by their time."""

    kernel_name: str = read_from("summary.kernel")
    device: str = read_from("summary.device")
    device_name: TextOrNull = read_from("summary.device_name", "the driver's name for it; null: not in the file")
    compute_capability: str = read_from("summary.compute_capability")
    gpu: GpuPart | None = Field(description="null: the GPU is not listed")
    launches: int = read_from("summary.launches")
    seconds: float | None = read_from("summary.seconds")
    grid: tuple[int, int, int] | None = read_from("summary.grid", "null: unknown, or not the same in all launches")
    block: tuple[int, int, int] | None = read_from("summary.block")
    bound: Literal["memory", "compute", "balanced", "latency", "unknown"] = read_from("light.bound")
    bound_by_rule: bool = read_from(
        "light.by_rule", "true: the verdict is that of Nsight Compute's rule in the file", default=False
    )
    compute_pct: float | None = read_from("light.compute_pct")
    memory_pct: float | None = read_from("light.memory_pct")
    memory_part: str | None = read_from("light.part")
    limiters: dict[str, float] = read_from(
        "summary.limiters", "resource with the smallest block limit: share of the time"
    )
    warp_stalls: dict[str, float] | None = read_from(
        "stalls.shares", "share of the time that warps are resident, by reason", default=None
    )
    labels: tuple[LabelPart, ...]
    metrics: dict[str, float] = read_from("summary.values", "in base units: s, byte, byte/s, hz, %")
    ncu_rules: tuple[RulePart, ...] = read_from("summary.rules")


class NcuResult(Part):
    """Findings in one export."""

    schema_: Literal["frx_ncu_v1"] = Field(default="frx_ncu_v1", alias="schema")
    source: str
    form: Literal["long", "wide", "report"]
    number_format: Literal["point", "comma"]
    launches: int
    kernel_count: int
    kernels_with_warp_stall_data: int
    primary_bottleneck: str | None = Field(description="null: these metrics show no bottleneck")
    secondary_bottlenecks: tuple[str, ...]
    bottlenecks: tuple[BottleneckPart, ...]
    recommendations: tuple[RecommendationPart, ...]
    kernel_attribution: AttributionPart
    kernels: tuple[KernelPart, ...]
    missing: dict[str, tuple[str, ...]] = Field(description="by preset, the metrics missing from all launches")
    unread: tuple[str, ...] = Field(description="metrics with an unreadable unit or value, with the line or launch")


class NcuDocument(Part):
    """Wrapper shared by all analyses."""

    mode: Literal["ncu"] = "ncu"
    result: NcuResult


def build_ncu_document(export: NcuExport, analysis: KernelAnalysis) -> NcuDocument:
    """Return the document of an export."""
    labels = [bottleneck.label for bottleneck in analysis.bottlenecks]
    primary = analysis.primary
    place = "launch" if export.form is Form.REPORT else "line"
    return NcuDocument(
        result=NcuResult.from_record(
            analysis,
            source=export.source,
            form=export.form.value,
            number_format=export.number_format.value,
            launches=export.launches,
            kernel_count=len(analysis.kernels),
            kernels_with_warp_stall_data=analysis.with_stalls,
            primary_bottleneck=None if primary is None else primary.label,
            secondary_bottlenecks=tuple(label for label in labels if primary is not None and label != primary.label),
            kernel_attribution=AttributionPart(
                has_runtime_share=analysis.timed,
                top_opportunities=tuple(OpportunityPart.from_record(one.attribution) for one in analysis.kernels),
            ),
            kernels=tuple(
                KernelPart.from_record(
                    one,
                    light=judge_speed_of_light(one.summary.values, one.summary.rules),
                    stalls=compute_warp_stalls(one.summary.values),
                )
                for one in analysis.kernels
            ),
            missing=_list_missing(analysis),
            unread=(
                *(f"{place} {number}: unknown unit: {what}" for what, number in export.unknown_units.items()),
                *(f"{place} {number}: not a number: {what}" for what, number in export.unreadable.items()),
                *(f"{place} {number}: impossible: {what}" for what, number in export.impossible.items()),
            ),
        )
    )


def _list_missing(analysis: KernelAnalysis) -> dict[str, tuple[str, ...]]:
    seen = {name for kernel in analysis.kernels for name in add_derived_values(kernel.summary.values)}
    missing = {
        preset.name: tuple(name for name in preset.metrics if name not in seen)
        + (("warp stalls",) if preset.stalls and not analysis.with_stalls else ())
        for preset in PRESETS.values()
    }
    return {name: metrics for name, metrics in missing.items() if metrics}
