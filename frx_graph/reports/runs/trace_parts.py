"""The parts of the document `frx_trace_v1`: shares are 0..1, what a trace does not tell is null."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from frx_graph.analyzers.timeline.host_time import Part
from frx_graph.analyzers.timeline.labels import Answer
from frx_graph.analyzers.trace.kernel_names import KernelFamily
from frx_graph.reports.render.document import FinitePart
from frx_graph.reports.render.recommendation_part import RecommendationPart


class MarkedStepPart(FinitePart):
    """One step that the program marked."""

    number: int
    ms: float


class WindowPart(FinitePart):
    """What part of the trace all figures are of."""

    steps: tuple[MarkedStepPart, ...] = Field(description="that are used; empty: the program marked none, all is used")
    left_out: tuple[MarkedStepPart, ...] = Field(description="a first step that takes far longer than the others")
    host_ms: float = Field(description="of the used steps")
    span_ms: float = Field(description="the same, up to the end of what was launched in the last one")
    step_ms: float | None = Field(description="span_ms a step; null: no steps")


class StreamPart(FinitePart):
    """One stream."""

    stream: str
    kernels: int
    communication_kernels: int
    copies: int
    busy_ms: float


class DevicePart(FinitePart):
    """One device. Times are of unions of intervals: what overlaps counts once."""

    device: int | None
    name: str | None
    busy_share: float = Field(description="0..1 of span_ms in which it did anything")
    idle_share: float
    kernel_busy_ms: float
    memcpy_busy_ms: float
    memset_busy_ms: float
    busy_ms: float
    compute_ms: float = Field(description="kernels that do not communicate")
    communication_ms: float = Field(description="kernels of NCCL, RCCL and their like")
    exposed_communication_ms: float = Field(description="with no computation beside it")
    host_to_device_ms: float
    exposed_host_to_device_ms: float = Field(description="with no kernel beside it")
    streams: tuple[StreamPart, ...]


class TransferPart(FinitePart):
    """All copies of one kind. `total_ms` is a sum."""

    direction: str | None = Field(description="HtoD, DtoH, DtoD, PtoP, HtoH")
    host_memory: str | None = Field(description="pageable, pinned, managed; null: the trace does not say")
    count: int
    bytes: int | None = Field(description="null: the size of a copy is not in the trace")
    total_ms: float
    bytes_per_s: float | None


class LauncherPart(FinitePart):
    """The operators around a launch."""

    inner: str = Field(description="the innermost dispatched operator")
    outer: str = Field(description="the outermost one")
    total_ms: float


class SitePart(FinitePart):
    """A line of the program, or the module that it stands in."""

    file: str
    line: int
    function: str
    module_path: str


class KernelPart(FinitePart):
    """All launches of one kernel. Times are sums."""

    name: str
    family: KernelFamily
    tensor_cores: bool | None = Field(description="null: its name does not tell")
    count: int
    total_ms: float
    median_us: float
    busy_share: float | None = Field(description="0..1 of the time in which kernels run, summed over devices")
    operators: tuple[LauncherPart, ...] = Field(description="those of most time")


class FamilyPart(FinitePart):
    """All kernels of one family."""

    family: KernelFamily
    count: int
    total_ms: float
    share: float | None = Field(description="0..1 of the summed time of all kernels")


class OperatorPart(FinitePart):
    """The kernels that one operator launched, in one part of the step."""

    inner: str
    outer: str
    part: Part
    calls: int
    kernels: int
    total_ms: float
    share: float | None = Field(description="0..1 of the summed time of all kernels")
    site: SitePart | None = Field(description="of most time; null: no stacks were recorded")
    sites: int = Field(description="how many there are; 1 where stacks were not recorded")


class AttributionPart(FinitePart):
    """How much is known of who launched what."""

    kernels: int
    attributed: int
    attributed_share: float | None = Field(description="0..1 of the summed time; null: there are no kernels")


class LaunchPart(FinitePart):
    """How kernels follow each other."""

    kernel_count: int
    kernel_count_per_step: float | None
    median_cuda_kernel_duration_us: float
    small_kernel_fraction: float = Field(description="0..1: kernels that take less than 10 us")
    small_kernel_ms: float
    starved_kernel_fraction: float | None = Field(
        description="0..1: kernels whose stream had run dry before they were launched; null: no launch was recorded"
    )
    launch_calls: int
    launch_call_ms: float | None
    median_launch_call_us: float | None
    gaps: int = Field(description="idle times of devices between two activities")
    gap_ms: float
    median_gap_us: float | None


class WaitPart(FinitePart):
    """Calls in which the host waits for a device."""

    call: str
    asked_by: str | None = Field(description="the outermost operator around it; null: the program itself")
    site: SitePart | None
    count: int
    total_ms: float


class CallPart(FinitePart):
    """A function of the runtime or driver."""

    name: str
    count: int
    total_ms: float


class HostPart(FinitePart):
    """What the host did within the used steps. Times are of unions over its threads."""

    dataloader_wait_ms: float | None = Field(description="null: neither a range nor a frame of a DataLoader is there")
    dataloader_wait_share: float | None = Field(description="0..1 of host_ms")
    idle_while_loading_share: float | None = Field(description="0..1 of span_ms: a device idle meanwhile")
    host_bound_idle_share: float | None = Field(description="0..1 of span_ms: a device idle, and no wait for input")
    sync_wait_ms: float | None = Field(description="null: no call of a runtime is there")
    sync_wait_share: float | None
    idle_after_sync_share: float | None
    allocation_ms: float | None = Field(description="cudaMalloc, cudaFree and their like")
    collectives_ms: float = Field(description="ranges of communication as the host saw them")
    parts_ms: dict[Part, float] = Field(description="'forward' is every operator outside the other parts")
    device_parts_ms: dict[Part, float] = Field(description="summed kernel time, by the part that launched it")
    waits: tuple[WaitPart, ...]
    calls: tuple[CallPart, ...] = Field(description="the longest")


class LabelPart(FinitePart):
    """One label, and what speaks for it or against it."""

    label: str
    answer: Answer
    score: float = Field(description="0..1 of the time that it costs")
    confidence: float
    symptom: bool = Field(description="what another label causes")
    evidence: str


class LayoutPart(FinitePart):
    """Copies and conversions of one operator, and the finding of `frx analyze --trace` on them."""

    operator: str
    rule: str
    fingerprint: str = Field(description="of the finding, as in SARIF and baselines")
    title: str
    fix: str
    site: SitePart | None
    copies: int
    kernels: tuple[str, ...]
    bytes: int | None = Field(description="read and written; null: a size is not in the trace")
    total_ms: float


class MissingPart(FinitePart):
    """What the trace does not tell."""

    subject: str
    reason: str


class TraceResult(FinitePart):
    """What was found in one trace."""

    schema_: Literal["frx_trace_v1"] = Field(default="frx_trace_v1", alias="schema")
    source: str
    rank: int | None
    world_size: int | None
    window: WindowPart
    primary_bottleneck: str | None = Field(description="null: nothing that this trace tells holds the run back")
    secondary_bottlenecks: tuple[str, ...]
    symptom: str | None = Field(description="what the bottleneck leads to, where that is seen")
    labels: tuple[LabelPart, ...]
    recommendations: tuple[RecommendationPart, ...]
    devices: tuple[DevicePart, ...]
    transfers: tuple[TransferPart, ...]
    launches: LaunchPart | None = Field(description="null: no kernel is in the steps")
    host: HostPart
    attribution: AttributionPart
    families: tuple[FamilyPart, ...]
    kernels: tuple[KernelPart, ...]
    operators: tuple[OperatorPart, ...]
    layout_share: float | None = Field(description="0..1 of the time in which kernels run")
    layout: tuple[LayoutPart, ...]
    layout_findings: int = Field(description="of `frx analyze --trace`, copies on the host included")
    missing: tuple[MissingPart, ...]


class TraceDocument(FinitePart):
    """The wrapper that all analyses share."""

    mode: Literal["trace"] = "trace"
    result: TraceResult
