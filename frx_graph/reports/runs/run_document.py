"""Findings in a run as JSON: the document `frx_run_v1`, under the mode "run_bundle"."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Literal

from frx_graph.analyzers.run.analysis import RunRecord, ScopeAnalysis
from frx_graph.analyzers.run.batch_layouts import StrideChange
from frx_graph.analyzers.run.diagnosis import Diagnosis
from frx_graph.analyzers.run.figures import ScopeFigures
from frx_graph.analyzers.run.steps import Activity, RunStep, group_steps
from frx_graph.analyzers.timeline.labels import RunLabel
from frx_graph.facts.layout import is_channels_last, is_contiguous
from frx_graph.reports.kernels.explanation import classify_confidence
from frx_graph.reports.render.document import to_json
from frx_graph.reports.render.quantities import drop_non_finite
from frx_graph.reports.render.recommendation_part import build_recommendation
from frx_graph.reports.runs.run_parts import (
    ComparisonPart,
    DiagnosisPart,
    ProcessPart,
    RunDocument,
    RunResult,
    ScopePart,
    SelectorPart,
    SourcePart,
    StepPart,
    StrideChangePart,
    SummaryPart,
    TaxPart,
)
from frx_graph.reports.runs.trace_parts import LabelPart, MissingPart, TraceResult
from frx_graph.support.plain_text import clean_line
from frx_graph.version import __version__

_STEPS_LISTED = 1000
_CHANGES_LISTED = 100
_NAME = 200


def build_run_document(
    run_id: str,
    record: RunRecord,
    trace: TraceResult | None,
    sources: Sequence[SourcePart],
    missing: Sequence[MissingPart],
    unread: Sequence[MissingPart],
    warnings: Sequence[str],
) -> RunDocument:
    """Return the document of a run; `trace` is the document of the profiler's trace, if any."""
    timed = bool(record.run.figures.steps)
    source: Literal["events", "trace"] = "trace" if record.from_trace else "events"
    return RunDocument(
        result=RunResult(
            run_id=clean_line(run_id),
            frx_version=__version__,
            sources=tuple(sources),
            steps_from=source if timed else None,
            event_count=record.event_count,
            step_count=len(record.run.figures.steps),
            selector=SelectorPart.from_record(record.selector),
            auto_scope=record.automatic.scope,
            run=_build_scope(record.run),
            steady_state=_build_scope(record.steady_state),
            scope_comparison=_build_comparison(record),
            trace=trace,
            missing=tuple(missing),
            unread=tuple(unread),
            warnings=tuple(clean_line(warning, _NAME) for warning in warnings),
        )
    )


def format_summary(document: RunDocument) -> str:
    """Return the text of `derived/summary.json`: the result alone."""
    return json.dumps(to_json(document)["result"], indent=2, allow_nan=False) + "\n"


def _build_comparison(record: RunRecord) -> ComparisonPart:
    run, steady = _get_label(record.run.diagnosis.user_facing), _get_label(record.steady_state.diagnosis.user_facing)
    if not record.steady_state.figures.timed:
        return ComparisonPart(
            primary_changed=False, run=run, steady_state=None, reading="too few steps for a steady state"
        )
    if run == steady:
        reading = "both scopes agree"
    elif steady is None:
        reading = f"{run} appears only at the beginning: it is gone in the steady state"
    elif run is None:
        reading = f"{steady} appears only in the steady state"
    else:
        reading = f"the beginning is {run}, the steady state {steady}: rely on the steady state in a long run"
    return ComparisonPart(primary_changed=run != steady, run=run, steady_state=steady, reading=reading)


def _get_label(label: RunLabel | None) -> str | None:
    return None if label is None else label.label


def _build_scope(found: ScopeAnalysis) -> ScopePart:
    steps = found.figures.steps
    labels = tuple(map(LabelPart.from_record, found.labels))
    return ScopePart(
        scope=found.scope,
        per_step=tuple(map(_build_step, steps[-_STEPS_LISTED:])),
        steps_not_listed=max(0, len(steps) - _STEPS_LISTED),
        run_summary=_build_summary(found.figures),
        bottlenecks=tuple(label for label in labels if label.answer == "present"),
        labels=labels,
        diagnosis=_build_diagnosis(found.diagnosis),
        framework_abstraction_tax=None if found.tax is None else TaxPart.from_record(found.tax),
        layout_findings=tuple(map(_build_stride_change, found.stride_changes[:_CHANGES_LISTED])),
    )


def _build_step(step: RunStep) -> StepPart:
    return StepPart.from_record(
        step,
        kind=None if step.kind is None else clean_line(step.kind, _NAME),
        incomplete=not step.whole,
        wall_ms=step.wall_ns if step.whole else None,
        marked_ms=None if step.start_ns is None else step.end_ns - step.start_ns,
        unexplained_ms=step.unexplained_ns if step.whole else None,
        loss=drop_non_finite(step.loss),
        **{f"{activity}_ms": step.times.get(activity) for activity in Activity},
    )


def _build_summary(figures: ScopeFigures) -> SummaryPart:
    losses = [step.loss for step in figures.steps if step.loss is not None]
    known = [loss for loss in losses if math.isfinite(loss)]
    return SummaryPart.from_record(
        figures,
        steps=len(figures.steps),
        failed_steps=sum(step.failed for step in figures.steps),
        incomplete_steps=sum(not step.whole for step in figures.steps),
        processes=tuple(_build_process(process, steps) for process, steps in group_steps(figures.timed).items()),
        shape_change_share=None if figures.shapes is None else figures.shapes.share,
        last_loss=known[-1] if known else None,
        losses_not_finite=len(losses) - len(known),
        **{f"{activity}_share": figures.means.get(activity) for activity in Activity},
    )


def _build_process(process: int | None, steps: Sequence[RunStep]) -> ProcessPart:
    wall = sum(step.wall_ns for step in steps)
    waits = [step.times[Activity.LOADER] for step in steps if Activity.LOADER in step.times]
    return ProcessPart(
        process=process,
        steps=len(steps),
        step_ms=wall / len(steps) / 1e6,
        loader_wait_share=sum(waits) / wall if len(waits) == len(steps) else None,
    )


def _build_diagnosis(found: Diagnosis) -> DiagnosisPart:
    return DiagnosisPart.from_record(
        found,
        primary_bottleneck=_get_label(found.primary),
        primary_is_symptom=found.primary is not None and found.primary.symptom,
        user_facing_bottleneck=_get_label(found.user_facing),
        confidence_label=None if found.confidence is None else classify_confidence(found.confidence),
        recommendations=tuple(map(build_recommendation, found.recommendations)),
    )


def _build_stride_change(change: StrideChange) -> StrideChangePart:
    name = clean_line(change.tensor, _NAME)
    before, after = _classify_layout(change.shape, change.before), _classify_layout(change.shape, change.after)
    what = "input" if change.of == "batch" else "parameter"
    times = "once" if change.count == 1 else f"{change.count} times"
    return StrideChangePart.from_record(
        change,
        title=f"The strides of {what} `{name}` changed between steps, and its shape did not: {times}",
        rule="FRX006",
        tensor=name,
        layout_before=before,
        layout_after=after,
        fix=_suggest_fix(change, "channels_last" in (before, after)),
    )


def _classify_layout(shape: Sequence[int], strides: Sequence[int]) -> str:
    if is_contiguous(shape, strides):
        return "plain"
    return "channels_last" if is_channels_last(shape, strides) else "other strides"


def _suggest_fix(change: StrideChange, channels_last: bool) -> str:
    if change.of == "parameters":
        return (
            "convert the model once, before the first step and before it is compiled, with "
            "`.to(memory_format=...)`, and leave its parameters' strides alone afterwards"
        )
    memory_format = "torch.channels_last_3d" if len(change.shape) == 5 else "torch.channels_last"
    other = f", or `.contiguous(memory_format={memory_format})` if the model runs in that" if channels_last else ""
    return f"give the batch one layout where it is made, or at the head of the step: `.contiguous()`{other}"
