"""Explain the findings in a training run to the person who will change the program."""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.kernels.metric_levels import Level
from frx_graph.analyzers.kernels.recommendations import get_label_title
from frx_graph.analyzers.run.steps import Scope
from frx_graph.analyzers.timeline import labels as lines
from frx_graph.reports.kernels.explain_document import (
    DiagnosisPart,
    ExplainDocument,
    KeyMetricPart,
    MissingPart,
    TopKernelPart,
    classify_confidence,
    shorten_recommendation,
)
from frx_graph.reports.runs.rerun_command import build_recollect_command
from frx_graph.reports.runs.run_document import RunResult, SummaryPart
from frx_graph.reports.runs.trace_document import KernelPart, LabelPart

_UNREADABLE = "some files of the bundle were not read: frx analyze names them"
_KERNELS = 10
_RECOMMENDATIONS = 5


def explain_run(result: RunResult, scope: Scope) -> ExplainDocument:
    """Explain a run in one scope."""
    found = result.get_scope(scope)
    diagnoses = tuple(map(_build_diagnosis, found.bottlenecks))
    told = found.diagnosis.user_facing_bottleneck
    primary = next((one for one in diagnoses if one.label == told and told != lines.INSUFFICIENT), None)
    if primary is not None and found.diagnosis.confidence is not None:
        evidence = [*found.diagnosis.evidence, *_describe_times(found.run_summary)]
        if count := len(found.layout_findings):
            # Without the tensors' names, which belong to the program.
            evidence.append(f"strides of {count} tensors changed between steps while shapes did not (FRX006)")
        primary = primary.model_copy(
            update={
                "confidence": found.diagnosis.confidence,
                "confidence_label": classify_confidence(found.diagnosis.confidence),
                "evidence": tuple(evidence),
            }
        )
    kernels = () if result.trace is None else result.trace.kernels
    return ExplainDocument(
        evidence_file=result.run_id,
        layers_available=("run",),
        primary_diagnosis=primary,
        diagnoses=diagnoses,
        key_metrics=tuple(_build_metrics(found.run_summary)),
        static_findings=(),
        reconciled=(),
        ncu_bottlenecks=(),
        roofline=None,
        occupancy_summary=None,
        top_kernels=tuple(_build_kernel(rank, one) for rank, one in enumerate(kernels[:_KERNELS], start=1)),
        top_recommendations=tuple(map(shorten_recommendation, found.diagnosis.recommendations[:_RECOMMENDATIONS])),
        missing_data=tuple(
            MissingPart(layer="run", reason=reason)
            for reason in (
                *(f"{gap.subject}: {gap.reason}" for gap in result.missing),
                *([_UNREADABLE] if result.unread else []),
            )
        ),
        reprofile_command=build_recollect_command(result.command),
        source=None,
    )


def _build_diagnosis(label: LabelPart) -> DiagnosisPart:
    return DiagnosisPart.from_record(
        label,
        title=get_label_title(label.label),
        confidence_label=classify_confidence(label.confidence),
        evidence=(label.evidence,),
        kernels=(),
    )


def _describe_times(summary: SummaryPart) -> Iterator[str]:
    if summary.step_ms is None:
        return
    parts = (
        ("waiting for input", summary.loader_wait_share),
        ("copies from the host", summary.h2d_share),
        ("forward", summary.forward_share),
        ("backward", summary.backward_share),
        ("optimizer", summary.optimizer_share),
        ("waiting for devices", summary.sync_share),
    )
    known = ", ".join(f"{name} {share:.1%}" for name, share in parts if share is not None)
    yield f"a step takes {summary.step_ms:.4g} ms on average from batch to batch{': ' if known else ''}{known}"


def _build_metrics(summary: SummaryPart) -> Iterator[KeyMetricPart]:
    of_devices = {"h2d", "sync", "gpu_busy", "peak_memory"}
    for name, title, share, line, above in (
        ("loader_wait", "Waiting for input", summary.loader_wait_share, lines.INPUT_WAIT, True),
        ("h2d", "Copies from the host", summary.h2d_share, lines.COPY_TIME, True),
        ("sync", "Waiting for devices", summary.sync_share, lines.SYNC_WAIT, True),
        ("gpu_busy", "Devices busy", summary.gpu_busy_share, lines.LEAST_BUSY, False),
        ("peak_memory", "Memory of a device, most", summary.peak_memory_share, lines.MEMORY, True),
        ("shape_changes", "Steps on other shapes", summary.shape_change_share, lines.CHANGES, True),
    ):
        if name in of_devices and not summary.uses_device:
            continue
        # Values from the threshold on are bad, or values below it.
        bad = share is not None and (share >= line if above else share < line)
        yield KeyMetricPart(
            name=name,
            title=title,
            value=None if share is None else 100 * share,
            unit="%",
            level=Level.UNMEASURED if share is None else Level.BAD if bad else Level.GOOD,
            line=f"good: {f'below {100 * line:g}' if above else f'{100 * line:g} or more'}",
        )


def _build_kernel(rank: int, kernel: KernelPart) -> TopKernelPart:
    return TopKernelPart(
        rank=rank,
        kernel_name=kernel.name,
        launches=kernel.count,
        seconds=kernel.total_ms / 1e3,
        runtime_share_pct=None if kernel.busy_share is None else 100 * kernel.busy_share,
    )
