"""The parts of the document `frx_run_v1`: shares are 0..1; values not recorded are null, never 0."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.analyzers.run.abstraction_tax import TaxSeverity
from frx_graph.analyzers.run.steps import Scope
from frx_graph.analyzers.timeline.labels import Answer
from frx_graph.evidence.run.events import SnapshotOf
from frx_graph.records import Severity
from frx_graph.reports.render.document import FinitePart, Milliseconds, read_from
from frx_graph.reports.render.recommendation_part import RecommendationPart
from frx_graph.reports.runs.trace_parts import LabelPart, MissingPart, TraceResult


class SourcePart(FinitePart):
    """A file of the bundle that was read."""

    role: Literal["events", "trace", "samples"]
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
    framework_abstraction_tax: TaxPart | None = Field(description="null: not enough data")
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
    auto_scope: Scope = Field(description="the scope shown by default")
    run: ScopePart
    steady_state: ScopePart
    scope_comparison: ComparisonPart
    trace: TraceResult | None = Field(description="findings in the profiler's trace of a part of the run")
    missing: tuple[MissingPart, ...]
    unread: tuple[MissingPart, ...] = Field(description="files of the bundle by name, with reasons")
    warnings: tuple[str, ...] = Field(description="warnings of the program about its own record")

    def get_scope(self, wanted: Scope) -> ScopePart:
        """The requested scope."""
        chosen = self.auto_scope if wanted is Scope.AUTO else wanted
        return self.run if chosen is Scope.RUN else self.steady_state


class RunDocument(FinitePart):
    """Wrapper shared by all analyses."""

    mode: Literal["run_bundle"] = "run_bundle"
    result: RunResult
