"""Findings in a run as JSON: the document `frx_run_v1`, under the mode "run_bundle". Shares are 0..1."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from frx_graph.analyzers.run.abstraction_tax import TaxSeverity
from frx_graph.analyzers.run.analysis import RunRecord, ScopeAnalysis
from frx_graph.analyzers.run.batch_layouts import StrideChange
from frx_graph.analyzers.run.diagnosis import Diagnosis
from frx_graph.analyzers.run.figures import ScopeFigures
from frx_graph.analyzers.run.steps import Activity, RunStep, Scope, group_steps
from frx_graph.analyzers.timeline.labels import Answer, RunLabel
from frx_graph.evidence.run.events import SnapshotOf
from frx_graph.facts.layout import is_channels_last, is_contiguous
from frx_graph.records import Severity
from frx_graph.reports.kernels.explain_document import classify_confidence
from frx_graph.reports.render.document import FinitePart, Milliseconds, read_from, to_json
from frx_graph.reports.render.quantities import drop_non_finite
from frx_graph.reports.render.recommendation_part import RecommendationPart
from frx_graph.reports.runs.trace_document import LabelPart, MissingPart, TraceResult
from frx_graph.support.plain_text import clean_line
from frx_graph.version import __version__


class SourcePart(FinitePart):
    """A file of the bundle that was read."""

    role: Literal["events", "trace", "samples", "host"]
    path: str = Field(description="within the bundle")
    bytes: int
    sha256: str


class SelectorPart(FinitePart):
    """Choice of the steady state of each process."""

    skip_first_n: int = Field(description="first steps left out, at most a fifth of all")
    last_k: int = Field(description="number of the last other steps that are used")


class StepPart(FinitePart):
    """One step. Times may overlap; null: not recorded in this process."""

    process: int | None
    step: int | None = read_from("number")
    kind: str | None
    failed: bool
    incomplete: bool = Field(description="true: events are missing since the previous step, so it is not timed")
    wall_ms: Milliseconds | None = Field(description="from the end of the previous step to the end of this one")
    marked_ms: Milliseconds | None = Field(description="as the program marked it")
    loader_wait_ms: Milliseconds | None
    h2d_ms: Milliseconds | None
    d2h_ms: Milliseconds | None
    forward_ms: Milliseconds | None
    backward_ms: Milliseconds | None
    optimizer_ms: Milliseconds | None
    sync_ms: Milliseconds | None
    other_ms: Milliseconds | None = Field(description="parts of the step by the program's own names, and other copies")
    unexplained_ms: Milliseconds | None = Field(description="not recorded")
    loss: float | None = Field(description="null: not recorded, or not finite")


class ProcessPart(FinitePart):
    """One process that ran steps."""

    process: int | None
    steps: int
    step_ms: float | None
    loader_wait_share: float | None


class DeviceUsePart(FinitePart):
    """One device, by samples."""

    device: int | None
    samples: int
    busy_share: float | None = read_from("busy")
    memory_busy_share: float | None = read_from("memory_busy")
    peak_memory_share: float | None = read_from("peak_memory")


class HostUsePart(FinitePart):
    """The program's processes, by samples."""

    samples: int
    busy_processors: float | None = Field(description="processors' worth of time, on average")
    peak_memory_bytes: int | None = read_from("peak_memory", "of all processes; pages they share count once for each")
    peak_processes: int | None


class SummaryPart(FinitePart):
    """A scope in figures. Shares are of the time of complete steps that did not fail."""

    steps: int
    failed_steps: int
    incomplete_steps: int = Field(description="steps not timed, since events are missing")
    processes: tuple[ProcessPart, ...]
    step_ms: float | None = Field(description="mean, from batch to batch")
    median_step_ms: float | None = read_from("median_ms")
    p90_step_ms: float | None = read_from("p90_ms")
    steps_per_s: float | None = Field(description="of one process")
    loader_wait_share: float | None
    h2d_share: float | None
    d2h_share: float | None
    forward_share: float | None
    backward_share: float | None
    optimizer_share: float | None
    sync_share: float | None
    other_share: float | None
    unexplained_share: float | None = read_from("unexplained")
    between_steps_share: float | None = read_from(
        "between", "the part of the unexplained time before the program's mark"
    )
    dominant_stall: str | None
    gpu_busy_share: float | None = read_from("busy", "from a profiler's trace if any, else from samples")
    sampled_gpu_busy_share: float | None = read_from("sampled_busy")
    memory_busy_share: float | None = read_from("memory_busy")
    peak_memory_share: float | None = read_from("peak_memory")
    devices: tuple[DeviceUsePart, ...]
    uses_device: bool = Field(default=True, description="false: a sampler looked for devices and found none")
    host: HostUsePart | None = Field(default=None, description="null: no samples")
    shape_change_share: float | None = Field(description="share of steps with other shapes than the previous step")
    last_loss: float | None
    losses_not_finite: int


class WhyNotPart(FinitePart):
    """A label other than the diagnosis."""

    label: str
    answer: Answer
    reason: str


class DiagnosisPart(FinitePart):
    """The bottleneck of the run."""

    primary_bottleneck: str | None = Field(description="label of the highest score, symptoms included; null: none")
    primary_is_symptom: bool
    user_facing_bottleneck: str | None = Field(description="the most expensive cause; without a cause, the symptom")
    confidence: float | None = Field(description="0..1; null: no bottleneck")
    confidence_label: Literal["low", "medium", "high"] | None
    reason: str = Field(description="reasons for the confidence")
    evidence: tuple[str, ...]
    why_not: tuple[WhyNotPart, ...]
    recommendations: tuple[RecommendationPart, ...]


class ContributorPart(FinitePart):
    """A possible source of the tax."""

    name: str
    inferred: bool = Field(description="true: an opportunity to look into, not an observation")
    evidence: str


class TaxPart(FinitePart):
    """Time of devices that is lost to launching work in small pieces: a reasoned score, not calibrated by speed-ups."""

    score: float = Field(description="0..100")
    severity: TaxSeverity
    idle_share: float = read_from("idle")
    explained_share: float = read_from(
        "explained", "share of the device's time, idle because of input, copies or waits"
    )
    fragmentation: float = Field(description="0..1, share of small kernels")
    sampled: bool = Field(description="true: from samples and totals, not from a profiler's timeline")
    contributors: tuple[ContributorPart, ...]


class StrideChangePart(FinitePart):
    """A tensor whose strides changed between steps while its shape did not."""

    rule: Literal["FRX006"] = "FRX006"
    severity: Severity
    title: str
    of: SnapshotOf
    tensor: str
    shape: tuple[int, ...]
    strides_before: tuple[int, ...] = read_from("before")
    strides_after: tuple[int, ...] = read_from("after")
    layout_before: str
    layout_after: str
    count: int
    among: int = Field(description="number of opportunities to change")
    steps: tuple[int, ...] = Field(description="the first of them")
    fix: str


class ScopePart(FinitePart):
    """All findings of one scope."""

    scope: Scope
    per_step: tuple[StepPart, ...] = Field(description="the last ones")
    steps_not_listed: int
    run_summary: SummaryPart
    bottlenecks: tuple[LabelPart, ...] = Field(description="labels that apply, causes first")
    labels: tuple[LabelPart, ...] = Field(description="all of them")
    diagnosis: DiagnosisPart
    framework_abstraction_tax: TaxPart | None = read_from("tax", "null: not enough data")
    layout_findings: tuple[StrideChangePart, ...]


class ComparisonPart(FinitePart):
    """Agreement of the scopes."""

    primary_changed: bool
    run: str | None = Field(description="summary of all steps for people")
    steady_state: str | None
    reading: str


class RunResult(FinitePart):
    """Findings in one run, as in `derived/summary.json`."""

    schema_: Literal["frx_run_v1"] = Field(default="frx_run_v1", alias="schema")
    run_id: str
    frx_version: str = Field(description="version that analysed it")
    sources: tuple[SourcePart, ...]
    steps_from: Literal["events", "trace"] | None = Field(description="null: no recorded step")
    event_count: int
    step_count: int
    selector: SelectorPart
    auto_scope: Scope = read_from("automatic.scope", "the scope shown by default")
    run: ScopePart
    steady_state: ScopePart
    scope_comparison: ComparisonPart
    trace: TraceResult | None = Field(description="findings in the profiler's trace of a part of the run")
    missing: tuple[MissingPart, ...]
    unread: tuple[MissingPart, ...] = Field(description="files of the bundle by name, with reasons")
    warnings: tuple[str, ...] = Field(description="warnings of the program about its own record")
    command: tuple[str, ...] = Field(default=(), description="command line of the program; empty: not recorded")

    def get_scope(self, wanted: Scope) -> ScopePart:
        """The requested scope."""
        chosen = self.auto_scope if wanted is Scope.AUTO else wanted
        return self.run if chosen is Scope.RUN else self.steady_state


class RunDocument(FinitePart):
    """Wrapper shared by all analyses."""

    mode: Literal["run_bundle"] = "run_bundle"
    result: RunResult


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
    command: Sequence[str] = (),
) -> RunDocument:
    """Return the document of a run; `trace` is the document of the profiler's trace, if any."""
    timed = bool(record.run.figures.steps)
    source: Literal["events", "trace"] = "trace" if record.from_trace else "events"
    return RunDocument(
        result=RunResult.from_record(
            record,
            run_id=clean_line(run_id),
            frx_version=__version__,
            sources=tuple(sources),
            steps_from=source if timed else None,
            step_count=len(record.run.figures.steps),
            run=_build_scope(record.run),
            steady_state=_build_scope(record.steady_state),
            scope_comparison=_build_comparison(record),
            trace=trace,
            missing=tuple(missing),
            unread=tuple(unread),
            warnings=tuple(clean_line(warning, _NAME) for warning in warnings),
            command=tuple(command),
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
    return ScopePart.from_record(
        found,
        per_step=tuple(map(_build_step, steps[-_STEPS_LISTED:])),
        steps_not_listed=max(0, len(steps) - _STEPS_LISTED),
        run_summary=_build_summary(found.figures),
        bottlenecks=[label for label in found.labels if label.answer is Answer.PRESENT],
        diagnosis=_build_diagnosis(found.diagnosis),
        layout_findings=tuple(map(_build_stride_change, found.stride_changes[:_CHANGES_LISTED])),
    )


def _build_step(step: RunStep) -> StepPart:
    # `from_record` takes twice as long, and a document lists up to 2,000 steps.
    times = {f"{a}_ms": step.times[a] / 1e6 if a in step.times else None for a in Activity}
    return StepPart(
        process=step.process,
        step=step.number,
        kind=None if step.kind is None else clean_line(step.kind, _NAME),
        failed=step.failed,
        incomplete=not step.whole,
        wall_ms=step.wall_ns / 1e6 if step.whole else None,
        marked_ms=None if step.start_ns is None else (step.end_ns - step.start_ns) / 1e6,
        unexplained_ms=step.unexplained_ns / 1e6 if step.whole else None,
        loss=drop_non_finite(step.loss),
        **times,
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
