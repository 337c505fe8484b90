"""What was found in one file, put together for somebody who is to mend it: the document `frx_explain_v0`.

It holds what the analysis has measured, and bounds that follow from it; what is not known is null, or listed under
`missing_data` with the command that would tell. Names are printable, on one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from frx_graph.evidence.quoted_source import QuotedSource
from frx_graph.passes.kernels.label_titles import label_title
from frx_graph.passes.kernels.labels import INSUFFICIENT
from frx_graph.passes.kernels.metric_levels import Level, metric_levels
from frx_graph.reports.kernel_document import KernelPart, NcuResult, OpportunityPart
from frx_graph.reports.plain_text import encodable, lines, one_line
from frx_graph.reports.ptx_document import PtxResult
from frx_graph.reports.published_schema import published_schema
from frx_graph.reports.recommendation_part import RecommendationPart, ValidationPart
from frx_graph.reports.rerun_command import YOUR_PROGRAM, rerun_command

SCHEMA_NAME: Literal["frx_explain_v0"] = "frx_explain_v0"
_NAME_LIMIT = 1000
_KERNELS = 10
_RECOMMENDATIONS = 5
_HIGH, _MEDIUM = 0.8, 0.5
"""Confidence of what was measured together with a verdict is 0.9, without one 0.6, of what only PTX hints at less."""
_YOURS = ("--", *YOUR_PROGRAM)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DiagnosisPart(_Part):
    """A label, of all kernels together, with how sure it is."""

    label: str
    title: str
    score: float = Field(description="0..1")
    confidence: float = Field(description="0..1")
    confidence_label: Literal["low", "medium", "high"]
    evidence: tuple[str, ...]
    kernels: tuple[str, ...]


class KeyMetricPart(_Part):
    """A headline metric of the most promising kernel, beside the line that it is judged by."""

    name: str
    title: str
    value: float | None = Field(description="null: not measured")
    unit: str
    level: Level
    line: str


class StaticFindingPart(_Part):
    """What a kernel's instructions, or its source, show without its having run."""

    layer: Literal["ptx", "source"]
    label: str
    score: float
    confidence: float
    evidence: str
    kernel: str


class ScoredLabelPart(_Part):
    """A label and its score."""

    label: str
    score: float = Field(description="0..1")


class TopKernelPart(_Part):
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


class RooflinePart(_Part):
    """Where the most promising kernel stands."""

    kernel_name: str
    region: str
    compute_pct: float | None = Field(description="of the device's peak")
    memory_pct: float | None = Field(description="of the device's peak")
    memory_part: str | None = Field(description="the part of the memory system that is busiest")
    mfu_pct: float | None


class OccupancyPart(_Part):
    """What occupancy the most promising kernel has, and what limits it."""

    kernel_name: str
    achieved_pct: float | None
    theoretical_pct: float | None
    limiters: dict[str, float] = Field(description="resource with the smallest block limit: share of the time")
    registers_per_thread: float | None
    threads_per_block: int | None


class TopRecommendationPart(_Part):
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


class MissingPart(_Part):
    """Evidence that would tell more."""

    layer: Literal["ncu", "ptx", "source"]
    reason: str
    command: str | None


class SourcePart(_Part):
    """Lines of a file, as they stand there but for what cannot be printed."""

    path: str
    first_line: int
    total_lines: int
    lines: tuple[str, ...]


class ExplainDocument(_Part):
    """What is known, and what is not, about the kernels of one file of evidence."""

    schema_: Literal["frx_explain_v0"] = Field(default=SCHEMA_NAME, alias="schema")
    evidence_file: str
    layers_available: tuple[Literal["ncu", "ptx"], ...]
    primary_diagnosis: DiagnosisPart | None = Field(
        description="null: nothing that was measured holds the kernels back"
    )
    diagnoses: tuple[DiagnosisPart, ...]
    key_metrics: tuple[KeyMetricPart, ...]
    static_findings: tuple[StaticFindingPart, ...]
    ncu_bottlenecks: tuple[ScoredLabelPart, ...]
    top_kernels: tuple[TopKernelPart, ...]
    roofline: RooflinePart | None
    occupancy_summary: OccupancyPart | None
    top_recommendations: tuple[TopRecommendationPart, ...]
    missing_data: tuple[MissingPart, ...]
    reprofile_command: str
    source: SourcePart | None = Field(description="what was given with --source; it is quoted, and not analysed")


def explain_ncu(result: NcuResult, *, measured: Sequence[str] = _YOURS) -> ExplainDocument:
    """The explanation of an export; `measured` are the filters, `--`, and the program that it was measured of."""
    diagnoses = tuple(
        _diagnosis(one.label, one.score, one.confidence, one.evidence, one.kernels) for one in result.bottlenecks
    )
    known = tuple(one for one in diagnoses if one.label != INSUFFICIENT)
    # Both are ordered by what is to be had; one name may stand for kernels on several devices.
    ranked = tuple(zip(result.kernels, result.kernel_attribution.top_opportunities, strict=True))
    first, place = ranked[0]
    missing = result.missing.get("full", ())
    return ExplainDocument(
        schema=SCHEMA_NAME,
        evidence_file=_printable(result.source),
        layers_available=("ncu",),
        primary_diagnosis=known[0] if known else None,
        diagnoses=diagnoses,
        key_metrics=_key_metrics(first),
        static_findings=(),
        ncu_bottlenecks=tuple(ScoredLabelPart(label=one.label, score=one.score) for one in result.bottlenecks),
        top_kernels=tuple(_kernel(rank, *one) for rank, one in enumerate(ranked[:_KERNELS], start=1)),
        roofline=_roofline(first, place),
        occupancy_summary=_occupancy(first),
        top_recommendations=tuple(map(_recommendation, result.recommendations[:_RECOMMENDATIONS])),
        missing_data=(
            MissingPart(
                layer="ncu",
                reason=f"not measured: {', '.join(missing)}",
                command=encodable(rerun_command(None, measured)),
            ),
        )
        if missing
        else (),
        reprofile_command=encodable(rerun_command(result.primary_bottleneck, measured)),
        source=None,
    )


def explain_ptx(result: PtxResult) -> ExplainDocument:
    """The explanation of a PTX file: risks, since nothing of it has run; the kernels with the greatest come first."""
    diagnoses = tuple(
        _diagnosis(one.label, one.score, one.confidence, one.evidence, one.kernels) for one in result.bottlenecks
    )
    risky = tuple(dict.fromkeys(name for one in result.bottlenecks for name in one.kernels))
    places = {name: place for place, name in enumerate(risky)}
    ranked = sorted(result.kernels, key=lambda kernel: places.get(kernel.name, len(places)))
    missing = [MissingPart(layer="ncu", reason="nothing was measured while it ran", command=rerun_command(None))]
    if result.not_assembled_because is not None:
        # What ptxas says may quote the file.
        reason = "registers and spills are not known, since no ptxas could tell"
        missing.append(MissingPart(layer="ptx", reason=reason, command=None))
    return ExplainDocument(
        schema=SCHEMA_NAME,
        evidence_file=_printable(result.source),
        layers_available=("ptx",),
        primary_diagnosis=diagnoses[0] if diagnoses else None,
        diagnoses=diagnoses,
        key_metrics=(),
        static_findings=tuple(
            StaticFindingPart(
                layer="ptx",
                label=one.label,
                score=one.score,
                confidence=one.confidence,
                evidence=evidence,
                kernel=_printable(kernel),
            )
            for one in result.bottlenecks
            for evidence, kernel in zip(one.evidence, one.kernels, strict=True)
        ),
        ncu_bottlenecks=(),
        top_kernels=tuple(
            TopKernelPart(
                rank=rank,
                kernel_name=_printable(kernel.name),
                launches=None,
                seconds=None,
                runtime_share_pct=None,
                mfu_pct=None,
                roofline_region=None,
                opportunity=None,
                opportunity_score=None,
                registers=kernel.physical_registers,
            )
            for rank, kernel in enumerate(ranked[:_KERNELS], start=1)
        ),
        roofline=None,
        occupancy_summary=None,
        top_recommendations=tuple(map(_recommendation, result.recommendations[:_RECOMMENDATIONS])),
        missing_data=tuple(missing),
        reprofile_command=rerun_command(None),
        source=None,
    )


def with_source(document: ExplainDocument, quoted: QuotedSource) -> ExplainDocument:
    """The same with the source of its kernels."""
    source = SourcePart(
        path=_printable(quoted.path),
        first_line=quoted.first,
        total_lines=quoted.total,
        # One line of the file at a time: what splits lines elsewhere must not move the numbers.
        lines=tuple(" ".join(lines(line)) for line in quoted.lines),
    )
    return document.model_copy(update={"source": source})


def explain_schema() -> str:
    """The text of `frx_explain_v0.schema.json`."""
    return published_schema(SCHEMA_NAME, ExplainDocument)


def as_json(document: ExplainDocument) -> dict[str, Any]:
    """What is written."""
    found: dict[str, Any] = TypeAdapter(ExplainDocument).dump_python(document, mode="json", by_alias=True)
    return found


def _printable(text: str) -> str:
    return one_line(text, _NAME_LIMIT)


def _diagnosis(
    label: str, score: float, confidence: float, evidence: tuple[str, ...], kernels: tuple[str, ...]
) -> DiagnosisPart:
    return DiagnosisPart(
        label=label,
        title=label_title(label),
        score=score,
        confidence=confidence,
        confidence_label="high" if confidence >= _HIGH else "medium" if confidence >= _MEDIUM else "low",
        evidence=evidence,
        kernels=tuple(map(_printable, kernels)),
    )


def _key_metrics(kernel: KernelPart) -> tuple[KeyMetricPart, ...]:
    return tuple(
        KeyMetricPart(name=one.name, title=one.title, value=one.value, unit=one.unit, level=one.level, line=one.line)
        for one in metric_levels(kernel.metrics)
    )


def _kernel(rank: int, kernel: KernelPart, place: OpportunityPart) -> TopKernelPart:
    registers = kernel.metrics.get("registers_per_thread")
    return TopKernelPart(
        rank=rank,
        kernel_name=_printable(kernel.kernel_name),
        launches=kernel.launches,
        seconds=kernel.seconds,
        runtime_share_pct=place.runtime_share_pct,
        mfu_pct=place.mfu_pct,
        roofline_region=place.roofline_region,
        opportunity=place.opportunity,
        opportunity_score=place.opportunity_score,
        registers=None if registers is None else round(registers),
    )


def _roofline(kernel: KernelPart, place: OpportunityPart) -> RooflinePart:
    return RooflinePart(
        kernel_name=_printable(kernel.kernel_name),
        region=place.roofline_region,
        compute_pct=kernel.compute_pct,
        memory_pct=kernel.memory_pct,
        memory_part=kernel.memory_part,
        mfu_pct=place.mfu_pct,
    )


def _occupancy(kernel: KernelPart) -> OccupancyPart:
    block = kernel.block
    return OccupancyPart(
        kernel_name=_printable(kernel.kernel_name),
        achieved_pct=kernel.metrics.get("achieved_occupancy"),
        theoretical_pct=kernel.metrics.get("theoretical_occupancy"),
        limiters=kernel.limiters,
        registers_per_thread=kernel.metrics.get("registers_per_thread"),
        threads_per_block=None if block is None else block[0] * block[1] * block[2],
    )


def _recommendation(found: RecommendationPart) -> TopRecommendationPart:
    return TopRecommendationPart(
        id=found.id,
        title=found.title,
        priority=found.priority,
        tier=found.tier,
        score=found.score,
        estimated_speedup_pct_min=found.estimated_speedup_pct_min,
        estimated_speedup_pct_max=found.estimated_speedup_pct_max,
        kernels=tuple(map(_printable, found.kernels)),
        why=found.why,
        actions=found.actions[:2],
        validation_steps=found.validation_steps,
        risks=found.risks,
    )
