"""Findings in a profiler trace as JSON: the document `frx_trace_v1`, under the mode "trace". Shares are 0..1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from frx_graph.analyzers.timeline.analysis import RunAnalysis, Timeline
from frx_graph.analyzers.timeline.device_time import TransferTotal
from frx_graph.analyzers.timeline.host_idle import HostWork
from frx_graph.analyzers.timeline.host_time import Part
from frx_graph.analyzers.timeline.kernel_table import KernelTotal
from frx_graph.analyzers.timeline.labels import Answer
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.analyzers.trace.gaps import list_gaps
from frx_graph.analyzers.trace.kernel_names import KernelFamily
from frx_graph.evidence.trace.steps import Step
from frx_graph.records import Finding
from frx_graph.reports.advice.fingerprint import compute_fingerprints
from frx_graph.reports.render.document import FinitePart, Microseconds, Milliseconds, is_of_record, read_from
from frx_graph.reports.render.recommendation_part import RecommendationPart


class MarkedStepPart(FinitePart):
    """One step that the program marked."""

    number: int
    ms: float


class WindowPart(FinitePart):
    """The part of the trace that all figures cover."""

    steps: tuple[MarkedStepPart, ...] = Field(description="used steps; empty: none is marked, all is used")
    left_out: tuple[MarkedStepPart, ...] = Field(description="a first step that takes much longer than the others")
    host_ms: Milliseconds = read_from("host_ns", "of the used steps")
    span_ms: Milliseconds = read_from("span_ns", "the same, up to the end of the work launched in the last one")
    step_ms: float | None = Field(description="span_ms a step; null: no steps")


class StreamPart(FinitePart):
    """One stream."""

    stream: str
    kernels: int
    communication_kernels: int = read_from("communication")
    copies: int
    busy_ms: Milliseconds = read_from("busy_ns")


class DevicePart(FinitePart):
    """One device. Times are unions of intervals, so overlaps count once."""

    device: int | None
    name: str | None
    busy_share: float = Field(description="0..1 of span_ms in which it did anything")
    idle_share: float
    kernel_busy_ms: Milliseconds = read_from("kernel_ns")
    memcpy_busy_ms: Milliseconds = read_from("memcpy_ns")
    memset_busy_ms: Milliseconds = read_from("memset_ns")
    busy_ms: Milliseconds = read_from("busy_ns")
    compute_ms: Milliseconds = read_from("compute_ns", "kernels that do not communicate")
    communication_ms: Milliseconds = read_from("communication_ns", "kernels of NCCL, RCCL and their like")
    exposed_communication_ms: Milliseconds = read_from("exposed_communication_ns", "without concurrent computation")
    host_to_device_ms: Milliseconds = read_from("host_to_device_ns")
    exposed_host_to_device_ms: Milliseconds = read_from("exposed_host_to_device_ns", "without a concurrent kernel")
    streams: tuple[StreamPart, ...]


class TransferPart(FinitePart):
    """All copies of one kind. `total_ms` is a sum."""

    direction: str | None = Field(description="HtoD, DtoH, DtoD, PtoP, HtoH")
    host_memory: str | None = Field(description="pageable, pinned, managed; null: not in the trace")
    count: int
    bytes: int | None = Field(description="null: the size of a copy is not in the trace")
    total_ms: Milliseconds = read_from("total_ns")
    bytes_per_s: float | None


class LauncherPart(FinitePart):
    """The operators around a launch."""

    inner: str = Field(description="the innermost dispatched operator")
    outer: str = Field(description="the outermost one")
    total_ms: Milliseconds


class SitePart(FinitePart):
    """A line of the program, or its module."""

    file: str
    line: int
    function: str
    module_path: str


def _drop_unknown_site(site: Any, info: ValidationInfo) -> Any:
    """Return None for line 0 of a record, which means the trace itself: no stack was recorded."""
    return None if is_of_record(info) and site is not None and site.line == 0 else site


Site = Annotated[SitePart | None, BeforeValidator(_drop_unknown_site)]


class KernelPart(FinitePart):
    """All launches of one kernel. Times are sums."""

    name: str
    family: KernelFamily
    tensor_cores: bool | None = Field(description="null: not clear from the name")
    count: int
    total_ms: Milliseconds = read_from("total_ns")
    median_us: Microseconds = read_from("median_ns")
    busy_share: float | None = Field(description="0..1 of the time in which kernels run, summed over devices")
    operators: tuple[LauncherPart, ...] = Field(description="the kernels with the most time")


class FamilyPart(FinitePart):
    """All kernels of one family."""

    family: KernelFamily
    count: int
    total_ms: float
    share: float | None = Field(description="0..1 of the summed time of all kernels")


class OperatorPart(FinitePart):
    """The kernels that one operator launched, in one part of the step."""

    inner: str = read_from("launcher.inner")
    outer: str = read_from("launcher.outer")
    part: Part
    calls: int
    kernels: int
    total_ms: Milliseconds = read_from("total_ns")
    share: float | None = Field(description="0..1 of the summed time of all kernels")
    site: Site = Field(description="the one with the most time; null: no stacks were recorded")
    sites: int = Field(description="number of sites; 1 if stacks were not recorded")


class AttributionPart(FinitePart):
    """Coverage of the attribution of kernels to operators."""

    kernels: int = read_from("count")
    attributed: int
    attributed_share: float | None = Field(description="0..1 of the summed time; null: no kernels")


class LaunchPart(FinitePart):
    """Sequence of kernels, with the gaps between them."""

    kernel_count: int = read_from("kernels")
    kernel_count_per_step: float | None = read_from("per_step")
    median_cuda_kernel_duration_us: Microseconds = read_from("median_ns")
    small_kernel_fraction: float = Field(description="0..1: kernels that take less than 10 us")
    small_kernel_ms: Milliseconds = read_from("small_ns")
    small_kernels_by_part: dict[Part, int] = read_from("small_parts", "the most frequent first", default_factory=dict)
    small_kernels_by_operator: dict[str, int] = read_from(
        "small_operators", "by the outermost operator, the most frequent first", default_factory=dict
    )
    starved_kernel_fraction: float | None = Field(
        description="0..1: kernels whose stream had run dry before they were launched; null: no launch was recorded"
    )
    launch_calls: int = read_from("calls")
    launch_call_ms: Milliseconds | None = read_from("call_ns")
    median_launch_call_us: Microseconds | None = read_from("median_call_ns")
    gaps: int = Field(description="idle times of devices between two activities")
    gap_ms: Milliseconds = read_from("gap_ns")
    median_gap_us: Microseconds | None = read_from("median_gap_ns")


class WaitPart(FinitePart):
    """Calls in which the host waits for a device."""

    call: str
    asked_by: str | None = read_from("asker", "the outermost operator around it; null: the program itself")
    site: Site
    count: int
    total_ms: Milliseconds = read_from("total_ns")


class CallPart(FinitePart):
    """A function of the runtime or driver."""

    name: str
    count: int
    total_ms: Milliseconds = read_from("total_ns")


class HostOperatorPart(FinitePart):
    """All calls of one operator on the host."""

    name: str
    calls: int
    self_ms: Milliseconds = read_from("self_ns", "without the operators that it called, summed over threads")
    share: float | None = Field(description="0..1 of the time of all operators")


class HostPart(FinitePart):
    """Activity of the host within the used steps. Times are unions over all threads."""

    dataloader_wait_ms: Milliseconds | None = read_from(
        "host.loading_ns", "null: no range or frame of a DataLoader in the trace"
    )
    dataloader_wait_share: float | None = read_from("loading_share", "0..1 of host_ms")
    idle_while_loading_share: float | None = Field(description="0..1 of span_ms, with an idle device")
    host_bound_idle_share: float | None = read_from(
        "host_bound_share", "0..1 of span_ms, with an idle device and no wait for input"
    )
    idle_host_work_ms: dict[HostWork, Milliseconds] = read_from(
        "host_idle",
        "idle time of all devices without waits for input, by what the host does; the longest first",
        default_factory=dict,
    )
    sync_wait_ms: Milliseconds | None = read_from("host.waiting_ns", "null: no runtime calls in the trace")
    sync_wait_share: float | None = read_from("waiting_share")
    idle_after_sync_share: float | None = read_from("idle_after_waits_share")
    allocation_ms: Milliseconds | None = read_from("host.allocating_ns", "cudaMalloc, cudaFree and their like")
    collectives_ms: Milliseconds = read_from("host.collectives_ns", "ranges of communication on the host")
    parts_ms: dict[Part, Milliseconds] = read_from("host.parts", "'forward' is every operator outside the other parts")
    device_parts_ms: dict[Part, Milliseconds] = read_from(
        "kernels.parts", "summed kernel time, by the part that launched it"
    )
    waits: tuple[WaitPart, ...] = read_from("host.waits")
    calls: tuple[CallPart, ...] = Field(description="the longest")
    host_operators: tuple[HostOperatorPart, ...] = Field(
        default=(), description="the operators with the most time; empty: a device did something, or no operator ran"
    )


class LabelPart(FinitePart):
    """One label, with the evidence for or against it."""

    label: str
    answer: Answer
    score: float = Field(description="0..1, its share of the time")
    confidence: float
    symptom: bool = Field(description="true: another label causes it")
    evidence: str


class LayoutPart(FinitePart):
    """Copies and conversions of one operator, and the finding of `frx analyze --trace` on them."""

    operator: str
    rule: str = read_from("finding.rule")
    fingerprint: str = Field(description="fingerprint of the finding, as in SARIF and baselines")
    title: str = read_from("finding.title")
    fix: str = read_from("finding.fix")
    site: Site = read_from("finding.site")
    copies: int
    kernels: tuple[str, ...]
    bytes: int | None = Field(description="read and written; null: a size is not in the trace")
    total_ms: Milliseconds = read_from("total_ns")


class MissingPart(FinitePart):
    """Gap in the trace."""

    subject: str
    reason: str


class TraceResult(FinitePart):
    """Findings in one trace."""

    schema_: Literal["frx_trace_v1"] = Field(default="frx_trace_v1", alias="schema")
    source: str
    rank: int | None
    world_size: int | None
    window: WindowPart
    primary_bottleneck: str | None = Field(description="null: the trace shows no bottleneck")
    secondary_bottlenecks: tuple[str, ...]
    symptom: str | None = read_from("symptom.label", "visible consequence of the bottleneck")
    labels: tuple[LabelPart, ...]
    recommendations: tuple[RecommendationPart, ...]
    devices: tuple[DevicePart, ...]
    transfers: tuple[TransferPart, ...]
    launches: LaunchPart | None = Field(description="null: no kernels in the steps")
    host: HostPart
    attribution: AttributionPart
    families: tuple[FamilyPart, ...]
    kernels: tuple[KernelPart, ...]
    operators: tuple[OperatorPart, ...]
    layout_share: float | None = Field(description="0..1 of the time in which kernels run")
    layout: tuple[LayoutPart, ...]
    layout_findings: int = Field(description="findings of `frx analyze --trace`, copies on the host included")
    missing: tuple[MissingPart, ...]


class TraceDocument(FinitePart):
    """Wrapper shared by all analyses."""

    mode: Literal["trace"] = "trace"
    result: TraceResult


_CALLS = 10
"""Functions of the runtime that are listed."""
_OPERATORS = 100
"""Operators of the host that are listed."""


def build_trace_document(
    trace: TraceAnalysis, run: RunAnalysis, findings: Sequence[Finding], root: Path
) -> TraceDocument:
    """Return the document of a trace. `findings` are ranked and concern its layout copies; their fingerprints name
    files relative to `root`."""
    line = run.timeline
    windows, source = line.windows, trace.tree.trace
    primary = run.primary
    marks = dict(zip(findings, compute_fingerprints(findings, root), strict=True))
    return TraceDocument(
        result=TraceResult.from_record(
            run,
            source=str(source.path),
            rank=source.rank,
            world_size=source.world_size,
            window=WindowPart.from_record(
                windows,
                steps=tuple(map(_build_marked_step, windows.used)),
                left_out=tuple(map(_build_marked_step, windows.left_out)),
                step_ms=windows.span_ns / 1e6 / windows.steps if windows.steps else None,
            ),
            primary_bottleneck=None if primary is None else primary.label,
            secondary_bottlenecks=tuple(
                label.label for label in run.present if not label.symptom and label is not primary
            ),
            devices=tuple(
                DevicePart.from_record(
                    one,
                    busy_share=_divide(one.busy_ns, one.span_ns) or 0.0,
                    idle_share=_divide(one.idle_ns, one.span_ns) or 0.0,
                )
                for one in line.devices
            ),
            transfers=tuple(map(_build_transfer, line.transfers)),
            launches=_build_launches(line),
            host=HostPart.from_record(
                line,
                calls=line.host.calls[:_CALLS],
                host_operators=[
                    HostOperatorPart.from_record(one, share=_divide(one.self_ns, line.host.operators_ns))
                    for one in line.host.operators[:_OPERATORS]
                ],
            ),
            attribution=AttributionPart.from_record(
                line.kernels, attributed_share=_divide(line.kernels.attributed_ns, line.kernels.total_ns)
            ),
            families=tuple(
                FamilyPart(family=family, count=count, total_ms=time / 1e6, share=_divide(time, line.kernels.total_ns))
                for family, (count, time) in line.kernels.families.items()
            ),
            kernels=tuple(_build_kernel(kernel, line) for kernel in line.kernels.kernels),
            operators=tuple(
                OperatorPart.from_record(operator, share=_divide(operator.total_ns, line.kernels.total_ns))
                for operator in line.kernels.operators
            ),
            layout_share=line.layout_share,
            layout=tuple(LayoutPart.from_record(one, fingerprint=marks[one.finding]) for one in line.layout.work),
            layout_findings=len(findings),
            missing=[gap for gap in list_gaps(trace, peaks=None) if gap.subject != "ridge point"],
        )
    )


def _build_marked_step(step: Step) -> MarkedStepPart:
    return MarkedStepPart(number=step.number or 0, ms=(step.end_ns - step.start_ns) / 1e6)


def _divide(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _build_transfer(found: TransferTotal) -> TransferPart:
    known = found.bytes is not None and found.total_ns > 0
    return TransferPart.from_record(found, bytes_per_s=(found.bytes or 0) / (found.total_ns / 1e9) if known else None)


def _build_launches(line: Timeline) -> LaunchPart | None:
    found = line.launches
    if found is None:
        return None
    return LaunchPart.from_record(
        found,
        small_kernel_fraction=found.small / found.kernels,
        starved_kernel_fraction=_divide(found.starved, found.judged),
    )


def _build_kernel(kernel: KernelTotal, line: Timeline) -> KernelPart:
    return KernelPart.from_record(
        kernel,
        busy_share=_divide(kernel.total_ns, sum(device.kernel_ns for device in line.devices)),
        operators=[LauncherPart.from_record(launcher, total_ms=time_ns) for launcher, time_ns in kernel.operators],
    )
