"""Explanation of the findings in one file as JSON: the document `frx_explain_v0`.

It holds measurements, and bounds derived from them. Unknown values are null, or listed under `missing_data` with the
command that would measure them. Names are printable, on one line.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Sequence
from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from frx_graph.analyzers.cuda.analysis import CudaFinding
from frx_graph.analyzers.kernels.labels import INSUFFICIENT
from frx_graph.analyzers.kernels.metric_levels import Level, grade_metrics
from frx_graph.analyzers.kernels.recommendations import get_label_title
from frx_graph.analyzers.reconcile.confidence import ConfidenceLabel
from frx_graph.analyzers.reconcile.matched_kernels import MatchedKernel
from frx_graph.analyzers.reconcile.reconciliation import Reconciliation, Why
from frx_graph.analyzers.reconcile.signal import Layer
from frx_graph.evidence.quoted_source import QuotedSource
from frx_graph.reports.kernels.kernel_document import BottleneckPart, KernelPart, NcuResult, OpportunityPart
from frx_graph.reports.kernels.ptx_document import PtxResult, RiskPart
from frx_graph.reports.render.document import Part, WrittenPart, read_from
from frx_graph.reports.render.marked_text import split_lines
from frx_graph.reports.render.recommendation_part import (
    YOUR_PROGRAM,
    RecommendationPart,
    ValidationPart,
    build_rerun_command,
)
from frx_graph.rules.cuda_card import Severity
from frx_graph.support.plain_text import clean_line, escape_surrogates

_NAME = 1000
Name = Annotated[str, BeforeValidator(partial(clean_line, limit=_NAME))]
"""A name from a report or a program, made printable."""
_KERNELS = 10
_RECOMMENDATIONS = 5
_HIGH, _MEDIUM = 0.8, 0.5
"""Confidence is 0.9 for measurements with a verdict, 0.6 for measurements without one, and less for hints from PTX
alone."""
_YOURS = ("--", *YOUR_PROGRAM)
_AGAINST = frozenset({Why.REFUTED, Why.DISPUTED})


class DiagnosisPart(Part):
    """A label of all kernels together, with its confidence."""

    label: str
    title: str
    score: float = Field(description="0..1")
    confidence: float = Field(description="0..1")
    confidence_label: Literal["low", "medium", "high"]
    evidence: tuple[str, ...]
    kernels: tuple[Name, ...]


class KeyMetricPart(Part):
    """A headline metric of the most promising kernel, with its threshold."""

    name: str
    title: str
    value: float | None = Field(description="null: not measured")
    unit: str
    level: Level
    line: str


class StaticFindingPart(WrittenPart):
    """A finding in a kernel's instructions or source, without a run."""

    layer: Literal["ptx", "source"]
    label: str
    title: str
    score: float | None = Field(default=None, description="0..1; null: source findings have severities")
    severity: Severity | None = Field(default=None, description="null: PTX findings have scores")
    confidence: float
    evidence: Name
    kernel: Name
    measured_as: tuple[Name, ...] = Field(description="the report's name for it; empty: the same, or not in it")
    line: int | None = Field(default=None, description="line of the source; null: from PTX")
    fix: str | None = Field(default=None, description="null: see the recommendations")
    contradicted: bool = Field(
        default=False, description="true: the report contradicts it, on equal or better evidence"
    )


class ReconciledPart(Part):
    """A joint diagnosis of one kernel from source and report, as in `frx reconcile`."""

    diagnosis: str = read_from("rule.name")
    title: str = read_from("rule.title")
    kernel: Name = read_from("kernel.name")
    measured_as: tuple[str, ...] = Field(description="the report's name for the kernel; empty: not in the report")
    confidence: ConfidenceLabel = read_from("confidence.label")
    layers: tuple[Layer, ...]
    lines: tuple[int, ...] = Field(description="of the source")


class ScoredLabelPart(Part):
    """A label and its score."""

    label: str
    score: float = Field(description="0..1")


class TopKernelPart(WrittenPart):
    """A kernel. The first is the most promising."""

    rank: int
    kernel_name: Name
    launches: int | None = None
    seconds: float | None = None
    runtime_share_pct: float | None = Field(default=None, description="null: not all kernels were timed")
    mfu_pct: float | None = Field(default=None, description="null: not counted, or the device's peak is unknown")
    roofline_region: str | None = None
    opportunity: Literal["high", "medium", "low", "none"] | None = None
    opportunity_score: float | None = None
    registers: int | None = Field(default=None, description="a thread's")


class RooflinePart(Part):
    """Roofline position of the most promising kernel."""

    kernel_name: Name
    region: str
    compute_pct: float | None = Field(description="of the device's peak")
    memory_pct: float | None = Field(description="of the device's peak")
    memory_part: str | None = Field(description="the busiest part of the memory system")
    mfu_pct: float | None


class OccupancyPart(WrittenPart):
    """Occupancy of the most promising kernel, and its limiters."""

    kernel_name: Name
    achieved_pct: float | None = read_from("metrics.achieved_occupancy", default=None)
    theoretical_pct: float | None = read_from("metrics.theoretical_occupancy", default=None)
    limiters: dict[str, float] = Field(description="resource with the smallest block limit: share of the time")
    registers_per_thread: float | None = read_from("metrics.registers_per_thread", default=None)
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
    kernels: tuple[Name, ...]
    why: str
    actions: tuple[str, ...] = Field(description="the first two")
    validation_steps: tuple[ValidationPart, ...]
    risks: tuple[str, ...]


class MissingPart(WrittenPart):
    """Missing evidence that would help."""

    layer: Literal["ncu", "ptx", "source", "run"]
    reason: str
    command: str | None = None


class SourcePart(Part):
    """Lines of a file, with unprintable characters replaced."""

    path: Name
    first_line: int = read_from("first")
    total_lines: int = read_from("total")
    lines: tuple[str, ...]


class ExplainDocument(Part):
    """Known and missing facts about the kernels of one file of evidence."""

    schema_: Literal["frx_explain_v0"] = Field(default="frx_explain_v0", alias="schema")
    evidence_file: Name
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


def explain_ncu(result: NcuResult, *, measured: Sequence[str] = _YOURS) -> ExplainDocument:
    """Explain an export; `measured` holds the filters, `--`, and the program of the measurement."""
    diagnoses = tuple(map(_build_diagnosis, result.bottlenecks))
    known = tuple(one for one in diagnoses if one.label != INSUFFICIENT)
    # Both are ordered by possible gain; one name may denote kernels on several devices.
    ranked = tuple(zip(result.kernels, result.kernel_attribution.top_opportunities, strict=True))
    first, place = ranked[0]
    unmeasured = result.missing.get("full", ())
    missing = [_report_no_source(result.source if measured == _YOURS else None)]
    if unmeasured:
        reason, command = f"not measured: {', '.join(unmeasured)}", build_rerun_command(None, measured)
        missing.insert(0, MissingPart(layer="ncu", reason=reason, command=escape_surrogates(command)))
    return ExplainDocument(
        evidence_file=result.source,
        layers_available=("ncu",),
        primary_diagnosis=known[0] if known else None,
        diagnoses=diagnoses,
        key_metrics=tuple(map(KeyMetricPart.from_record, grade_metrics(first.kernel_name, first.metrics))),
        static_findings=(),
        reconciled=(),
        ncu_bottlenecks=tuple(map(ScoredLabelPart.from_record, result.bottlenecks)),
        top_kernels=tuple(_build_kernel(rank, *one) for rank, one in enumerate(ranked[:_KERNELS], start=1)),
        roofline=RooflinePart.from_record(first, region=place.roofline_region, mfu_pct=place.mfu_pct),
        occupancy_summary=OccupancyPart.from_record(
            first, threads_per_block=None if first.block is None else math.prod(first.block)
        ),
        top_recommendations=tuple(map(shorten_recommendation, result.recommendations[:_RECOMMENDATIONS])),
        missing_data=tuple(missing),
        reprofile_command=escape_surrogates(build_rerun_command(result.primary_bottleneck, measured)),
        source=None,
    )


def explain_ptx(result: PtxResult) -> ExplainDocument:
    """Explain a PTX file by its risks, since it was not run; kernels with the greatest risk come first."""
    diagnoses = tuple(map(_build_diagnosis, result.bottlenecks))
    risky = tuple(dict.fromkeys(name for one in result.bottlenecks for name in one.kernels))
    places = {name: place for place, name in enumerate(risky)}
    ranked = sorted(result.kernels, key=lambda kernel: places.get(kernel.name, len(places)))
    missing = [MissingPart(layer="ncu", reason="nothing was measured while it ran", command=build_rerun_command(None))]
    if result.not_assembled_because is not None:
        # The message of ptxas may quote the file.
        missing.append(MissingPart(layer="ptx", reason="registers and spills are unknown without ptxas"))
    missing.append(_report_no_source(result.source))
    return ExplainDocument(
        evidence_file=result.source,
        layers_available=("ptx",),
        primary_diagnosis=diagnoses[0] if diagnoses else None,
        diagnoses=diagnoses,
        key_metrics=(),
        static_findings=tuple(
            StaticFindingPart(
                layer="ptx",
                label=one.label,
                title=get_label_title(one.label),
                score=one.score,
                confidence=one.confidence,
                evidence=evidence,
                kernel=kernel,
                measured_as=(kernel,),
            )
            for one in result.bottlenecks
            for evidence, kernel in zip(one.evidence, one.kernels, strict=True)
        ),
        reconciled=(),
        ncu_bottlenecks=(),
        roofline=None,
        occupancy_summary=None,
        top_kernels=tuple(
            TopKernelPart(rank=rank, kernel_name=kernel.name, registers=kernel.physical_registers)
            for rank, kernel in enumerate(ranked[:_KERNELS], start=1)
        ),
        top_recommendations=tuple(map(shorten_recommendation, result.recommendations[:_RECOMMENDATIONS])),
        missing_data=tuple(missing),
        reprofile_command=build_rerun_command(None),
        source=None,
    )


def add_source(
    document: ExplainDocument, quoted: QuotedSource, findings: Sequence[CudaFinding] | None, found: Reconciliation
) -> ExplainDocument:
    """Add the kernels' source, the findings in it (None unless it is CUDA), and the joint diagnoses."""
    # Split at line feeds only: other line separators must not shift the line numbers.
    source = SourcePart.from_record(quoted, lines=tuple(" ".join(split_lines(line)) for line in quoted.lines))
    missing = tuple(one for one in document.missing_data if one.layer != "source")
    if findings is None:
        missing += (MissingPart(layer="source", reason="it has no CUDA kernel, so it is only quoted"),)
        return document.model_copy(update={"source": source, "missing_data": missing})
    named: dict[str, tuple[str, ...]] = {}
    for kernel in found.kernels:
        if kernel.source is not None:
            # A template represents all instances.
            named[kernel.source.name] = (*named.get(kernel.source.name, ()), *_list_measured_names(kernel))
    if not any(named.values()):
        missing += (MissingPart(layer="source", reason="the report covers other kernels"),)
    against = _find_contradicted(found)
    own = tuple(_build_static_finding(one, named.get(one.kernel, ()), against) for one in findings)
    update = {
        "source": source,
        "missing_data": missing,
        "layers_available": ("source", *document.layers_available),
        "static_findings": (*document.static_findings, *own),
        "reconciled": tuple(
            ReconciledPart.from_record(
                one,
                measured_as=_list_measured_names(one.kernel),
                lines=sorted({signal.line for signal in one.agreeing if signal.line is not None}),
            )
            for one in found.diagnoses
        ),
    }
    return document.model_copy(update=update)


def _find_contradicted(found: Reconciliation) -> frozenset[tuple[str, str, int | None]]:
    """Return rule, kernel and line of findings that another layer refutes for every side of a diagnosis."""
    denied = {
        (one.label, one.kernel.source.name, one.line)
        for one in found.unreconciled
        if one.why in _AGAINST and one.layer is Layer.SOURCE
        if one.kernel is not None and one.kernel.source is not None
    }
    held = {
        (signal.label, one.kernel.source.name, signal.line)
        for one in found.diagnoses
        if one.kernel.source is not None
        for signal in one.agreeing
    }
    return frozenset(denied - held)


def _build_static_finding(
    found: CudaFinding, measured_as: tuple[str, ...], against: Collection[tuple[str, str, int | None]]
) -> StaticFindingPart:
    return StaticFindingPart(
        layer="source",
        label=found.card.id,
        title=found.card.title,
        severity=found.card.severity,
        confidence=found.card.confidence,
        evidence=found.seen,
        kernel=found.kernel,
        measured_as=measured_as,
        line=found.line,
        fix=found.card.fix,
        contradicted=(found.card.id, found.kernel, found.line) in against,
    )


def _list_measured_names(kernel: MatchedKernel) -> tuple[str, ...]:
    names = (*(one.summary.kernel for one in kernel.ncu), *(one.function.name for one in kernel.ptx))
    return tuple(dict.fromkeys(clean_line(name, _NAME) for name in names))


def _report_no_source(report: str | None) -> MissingPart:
    """Report missing source; without a command if the report was not kept."""
    words = ("frx", "explain", report or "", "--source", "kernel.cu")
    command = None if report is None else escape_surrogates(shlex.join(words))
    return MissingPart(layer="source", reason="memory accesses of the kernels were not checked", command=command)


def _build_diagnosis(found: BottleneckPart | RiskPart) -> DiagnosisPart:
    return DiagnosisPart.from_record(
        found, title=get_label_title(found.label), confidence_label=classify_confidence(found.confidence)
    )


def classify_confidence(confidence: float) -> Literal["low", "medium", "high"]:
    """Return a confidence in words."""
    return "high" if confidence >= _HIGH else "medium" if confidence >= _MEDIUM else "low"


def _build_kernel(rank: int, kernel: KernelPart, place: OpportunityPart) -> TopKernelPart:
    registers = kernel.metrics.get("registers_per_thread")
    return TopKernelPart.from_record(
        place,
        rank=rank,
        launches=kernel.launches,
        seconds=kernel.seconds,
        registers=None if registers is None else round(registers),
    )


def shorten_recommendation(found: RecommendationPart) -> TopRecommendationPart:
    """Return a card, shortened to the essential steps."""
    return TopRecommendationPart.from_record(found, actions=found.actions[:2])
