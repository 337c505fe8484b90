"""Explain the findings in one file to the person who will change the kernels."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from typing import Literal

from frx_graph.analyzers.cuda.analysis import CudaFinding
from frx_graph.analyzers.kernels.labels import INSUFFICIENT
from frx_graph.analyzers.kernels.metric_levels import grade_metrics
from frx_graph.analyzers.kernels.recommendations import get_label_title
from frx_graph.analyzers.reconcile.matched_kernels import MatchedKernel
from frx_graph.analyzers.reconcile.reconciliation import Diagnosis, Reconciliation, Why
from frx_graph.analyzers.reconcile.signal import Layer
from frx_graph.evidence.quoted_source import QuotedSource
from frx_graph.reports.kernels.explain_document import (
    DiagnosisPart,
    ExplainDocument,
    KeyMetricPart,
    MissingPart,
    OccupancyPart,
    ReconciledPart,
    RooflinePart,
    ScoredLabelPart,
    SourcePart,
    StaticFindingPart,
    TopKernelPart,
    TopRecommendationPart,
)
from frx_graph.reports.kernels.kernel_document import BottleneckPart, KernelPart, NcuResult, OpportunityPart
from frx_graph.reports.kernels.ptx_document import PtxResult, RiskPart
from frx_graph.reports.render.marked_text import split_lines
from frx_graph.reports.render.recommendation_part import YOUR_PROGRAM, RecommendationPart, build_rerun_command
from frx_graph.support.plain_text import clean_line, escape_surrogates

NAME_LIMIT = 1000
_KERNELS = 10
_RECOMMENDATIONS = 5
_HIGH, _MEDIUM = 0.8, 0.5
"""Confidence is 0.9 for measurements with a verdict, 0.6 for measurements without one, and less for hints from PTX
alone."""
_YOURS = ("--", *YOUR_PROGRAM)
_AGAINST = frozenset({Why.REFUTED, Why.DISPUTED})


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
        reason, command = (
            f"not measured: {', '.join(unmeasured)}",
            escape_surrogates(build_rerun_command(None, measured)),
        )
        missing.insert(0, MissingPart(layer="ncu", reason=reason, command=command))
    return ExplainDocument(
        evidence_file=_make_printable(result.source),
        layers_available=("ncu",),
        primary_diagnosis=known[0] if known else None,
        diagnoses=diagnoses,
        key_metrics=tuple(map(KeyMetricPart.from_record, grade_metrics(first.kernel_name, first.metrics))),
        static_findings=(),
        reconciled=(),
        ncu_bottlenecks=tuple(ScoredLabelPart(label=one.label, score=one.score) for one in result.bottlenecks),
        top_kernels=tuple(_build_kernel(rank, *one) for rank, one in enumerate(ranked[:_KERNELS], start=1)),
        roofline=_build_roofline(first, place),
        occupancy_summary=_build_occupancy(first),
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
        reason = "registers and spills are unknown without ptxas"
        missing.append(MissingPart(layer="ptx", reason=reason, command=None))
    missing.append(_report_no_source(result.source))
    return ExplainDocument(
        evidence_file=_make_printable(result.source),
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
                severity=None,
                confidence=one.confidence,
                evidence=evidence,
                kernel=_make_printable(kernel),
                measured_as=(_make_printable(kernel),),
                line=None,
                fix=None,
                contradicted=False,
            )
            for one in result.bottlenecks
            for evidence, kernel in zip(one.evidence, one.kernels, strict=True)
        ),
        reconciled=(),
        ncu_bottlenecks=(),
        top_kernels=tuple(
            TopKernelPart(
                rank=rank,
                kernel_name=_make_printable(kernel.name),
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
        top_recommendations=tuple(map(shorten_recommendation, result.recommendations[:_RECOMMENDATIONS])),
        missing_data=tuple(missing),
        reprofile_command=build_rerun_command(None),
        source=None,
    )


def add_source(
    document: ExplainDocument, quoted: QuotedSource, findings: Sequence[CudaFinding] | None, found: Reconciliation
) -> ExplainDocument:
    """Add the kernels' source, the findings in it (None unless it is CUDA), and the joint diagnoses."""
    source = SourcePart(
        path=_make_printable(quoted.path),
        first_line=quoted.first,
        total_lines=quoted.total,
        # Split at line feeds only: other line separators must not shift the line numbers.
        lines=tuple(" ".join(split_lines(line)) for line in quoted.lines),
    )
    missing = tuple(one for one in document.missing_data if one.layer != "source")
    if findings is None:
        missing += (MissingPart(layer="source", reason="it has no CUDA kernel, so it is only quoted", command=None),)
        return document.model_copy(update={"source": source, "missing_data": missing})
    named: dict[str, tuple[str, ...]] = {}
    for kernel in found.kernels:
        if kernel.source is not None:
            # A template represents all instances.
            named[kernel.source.name] = (*named.get(kernel.source.name, ()), *_list_measured_names(kernel))
    against = _find_contradicted(found)
    own = tuple(_build_static_finding(one, named.get(one.kernel, ()), against) for one in findings)
    update = {
        "source": source,
        "missing_data": missing,
        "layers_available": ("source", *document.layers_available),
        "static_findings": (*document.static_findings, *own),
        "reconciled": tuple(map(_build_reconciled, found.diagnoses)),
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
        score=None,
        severity=found.card.severity,
        confidence=found.card.confidence,
        evidence=_make_printable(found.seen),
        kernel=_make_printable(found.kernel),
        measured_as=measured_as,
        line=found.line,
        fix=found.card.fix,
        contradicted=(found.card.id, found.kernel, found.line) in against,
    )


def _build_reconciled(found: Diagnosis) -> ReconciledPart:
    lines = {one.line for one in found.agreeing if one.line is not None}
    return ReconciledPart(
        diagnosis=found.rule.name,
        title=found.rule.title,
        kernel=_make_printable(found.kernel.name),
        measured_as=_list_measured_names(found.kernel),
        confidence=found.confidence.label,
        layers=found.layers,
        lines=tuple(sorted(lines)),
    )


def _list_measured_names(kernel: MatchedKernel) -> tuple[str, ...]:
    names = (*(one.summary.kernel for one in kernel.ncu), *(one.function.name for one in kernel.ptx))
    return tuple(dict.fromkeys(map(_make_printable, names)))


def _report_no_source(report: str | None) -> MissingPart:
    """Report missing source; without a command if the report was not kept."""
    command = (
        None if report is None else escape_surrogates(shlex.join(("frx", "explain", report, "--source", "kernel.cu")))
    )
    return MissingPart(layer="source", reason="memory accesses of the kernels were not checked", command=command)


def _make_printable(text: str) -> str:
    return clean_line(text, NAME_LIMIT)


def _build_diagnosis(found: BottleneckPart | RiskPart) -> DiagnosisPart:
    return DiagnosisPart.from_record(
        found,
        title=get_label_title(found.label),
        confidence_label=classify_confidence(found.confidence),
        kernels=tuple(map(_make_printable, found.kernels)),
    )


def classify_confidence(confidence: float) -> Literal["low", "medium", "high"]:
    """Return a confidence in words."""
    return "high" if confidence >= _HIGH else "medium" if confidence >= _MEDIUM else "low"


def _build_kernel(rank: int, kernel: KernelPart, place: OpportunityPart) -> TopKernelPart:
    registers = kernel.metrics.get("registers_per_thread")
    return TopKernelPart.from_record(
        place,
        rank=rank,
        kernel_name=_make_printable(kernel.kernel_name),
        launches=kernel.launches,
        seconds=kernel.seconds,
        registers=None if registers is None else round(registers),
    )


def _build_roofline(kernel: KernelPart, place: OpportunityPart) -> RooflinePart:
    return RooflinePart.from_record(
        kernel,
        kernel_name=_make_printable(kernel.kernel_name),
        region=place.roofline_region,
        mfu_pct=place.mfu_pct,
    )


def _build_occupancy(kernel: KernelPart) -> OccupancyPart:
    block = kernel.block
    return OccupancyPart(
        kernel_name=_make_printable(kernel.kernel_name),
        achieved_pct=kernel.metrics.get("achieved_occupancy"),
        theoretical_pct=kernel.metrics.get("theoretical_occupancy"),
        limiters=kernel.limiters,
        registers_per_thread=kernel.metrics.get("registers_per_thread"),
        threads_per_block=None if block is None else block[0] * block[1] * block[2],
    )


def shorten_recommendation(found: RecommendationPart) -> TopRecommendationPart:
    """Return a card, shortened to the essential steps."""
    return TopRecommendationPart.from_record(
        found, kernels=tuple(map(_make_printable, found.kernels)), actions=found.actions[:2]
    )
