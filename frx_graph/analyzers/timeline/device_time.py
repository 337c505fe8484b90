"""Measure the busy time of each device, and its activities, by unions of intervals: nothing counts twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.timeline.windows import Windows, clip_events
from frx_graph.analyzers.trace.analysis import TraceAnalysis, sum_known
from frx_graph.analyzers.trace.copies import TraceCopy
from frx_graph.analyzers.trace.findings import get_operator_name, group_copies
from frx_graph.analyzers.trace.kernel_names import KernelFamily, classify_kernel_family
from frx_graph.evidence.trace.events import ActivityKind, DeviceActivity, parse_transfer
from frx_graph.evidence.trace.intervals import Span, is_covered, measure_union, subtract_spans, sum_spans
from frx_graph.records import Finding


@dataclass(frozen=True, slots=True)
class StreamTime:
    """One stream of a device: its activities within the windows."""

    stream: str
    kernels: int
    copies: int
    communication: int
    """Kernels that communicate between devices."""
    busy_ns: int


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """One device within the windows. `busy` are the merged spans in which it did anything; times are of unions."""

    device: int | None
    name: str | None
    streams: tuple[StreamTime, ...]
    span_ns: int
    busy: tuple[Span, ...]
    idle: tuple[Span, ...]
    kernel_ns: int
    memcpy_ns: int
    memset_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    """Communication while no kernel computed."""
    host_to_device_ns: int
    exposed_host_to_device_ns: int
    """Copies from the host while no kernel ran."""

    @property
    def busy_ns(self) -> int:
        """Return the time in which it did anything."""
        return sum_spans(self.busy)

    @property
    def gaps(self) -> tuple[Span, ...]:
        """Return idle spans between two activities."""
        return tuple(gap for gap in self.idle if self.busy and self.busy[0][0] <= gap[0] and gap[1] <= self.busy[-1][1])

    @property
    def idle_ns(self) -> int:
        """Return the time in which it did nothing."""
        return sum_spans(self.idle)


@dataclass(frozen=True, slots=True)
class TransferTotal:
    """All copies of one kind that were launched within the steps. `bytes` is None if a size is unknown."""

    direction: str | None
    host_memory: str | None
    count: int
    bytes: int | None
    total_ns: int


def measure_devices(analysis: TraceAnalysis, windows: Windows) -> tuple[DeviceTime, ...]:
    """Return all devices of the trace, by number."""
    by_device: dict[int | None, list[DeviceActivity]] = defaultdict(list)
    for activity in analysis.tree.activities:
        by_device[activity.device].append(activity)
    names = analysis.tree.trace.device_names
    return tuple(
        _measure_device(device, names.get(0 if device is None else device), activities, windows)
        for device, activities in sorted(by_device.items(), key=lambda item: -1 if item[0] is None else item[0])
    )


def _measure_device(
    device: int | None, name: str | None, activities: Sequence[DeviceActivity], windows: Windows
) -> DeviceTime:
    spans = windows.spans
    by_kind = {kind: [one for one in activities if one.kind is kind] for kind in ActivityKind}
    kernels, copies = by_kind[ActivityKind.KERNEL], by_kind[ActivityKind.MEMCPY]
    communication = clip_events((one for one in kernels if _communicates(one)), spans)
    compute = clip_events((one for one in kernels if not _communicates(one)), spans)
    running = clip_events(kernels, spans)
    from_host = clip_events((one for one in copies if parse_transfer(one.name).direction == "HtoD"), spans)
    busy = clip_events(activities, spans)
    return DeviceTime(
        device=device,
        name=name,
        streams=_measure_streams(activities, spans),
        span_ns=windows.span_ns,
        busy=busy,
        idle=subtract_spans(spans, busy),
        kernel_ns=sum_spans(running),
        memcpy_ns=sum_spans(clip_events(copies, spans)),
        memset_ns=sum_spans(clip_events(by_kind[ActivityKind.MEMSET], spans)),
        compute_ns=sum_spans(compute),
        communication_ns=sum_spans(communication),
        exposed_communication_ns=sum_spans(subtract_spans(communication, compute)),
        host_to_device_ns=sum_spans(from_host),
        exposed_host_to_device_ns=sum_spans(subtract_spans(from_host, running)),
    )


def _communicates(activity: DeviceActivity) -> bool:
    return classify_kernel_family(activity.name) is KernelFamily.COMMUNICATION


def _measure_streams(activities: Iterable[DeviceActivity], spans: Sequence[Span]) -> tuple[StreamTime, ...]:
    by_stream: dict[str, list[DeviceActivity]] = defaultdict(list)
    for activity in activities:
        if is_covered(spans, activity.start_ns):
            by_stream[activity.stream].append(activity)
    found = [
        StreamTime(
            stream=stream,
            kernels=sum(one.kind is ActivityKind.KERNEL for one in inside),
            copies=sum(one.kind is ActivityKind.MEMCPY for one in inside),
            communication=sum(one.kind is ActivityKind.KERNEL and _communicates(one) for one in inside),
            busy_ns=sum_spans(clip_events(inside, spans)),
        )
        for stream, inside in by_stream.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.busy_ns, one.stream)))


def sum_transfers(analysis: TraceAnalysis, windows: Windows) -> tuple[TransferTotal, ...]:
    """Add up the copies that steps launched, by direction and host memory; the longest first."""
    tree = analysis.tree
    asked = {call.correlation: call.bytes for call in tree.trace.calls if call.bytes is not None}
    gathered: dict[tuple[str | None, str | None], list[DeviceActivity]] = defaultdict(list)
    for index in windows.launched:
        activity = tree.activities[index]
        if activity.kind is ActivityKind.MEMCPY:
            kind = parse_transfer(activity.name)
            gathered[kind.direction, kind.host_memory].append(activity)
    totals = [
        TransferTotal(
            direction=direction,
            host_memory=host_memory,
            count=len(copies),
            bytes=sum_known(asked.get(one.correlation) if one.bytes is None else one.bytes for one in copies),
            total_ns=sum(one.duration_ns for one in copies),
        )
        for (direction, host_memory), copies in gathered.items()
    ]
    return tuple(sorted(totals, key=lambda one: -one.total_ns))


@dataclass(frozen=True, slots=True)
class LayoutWork:
    """Copies and conversions of one operator at one place, launched within the used steps. `bytes` is traffic, None if
    a size is unknown; `finding` is the finding from the same trace."""

    operator: str
    finding: Finding
    copies: int
    kernels: tuple[str, ...]
    bytes: int | None
    total_ns: int


@dataclass(frozen=True, slots=True)
class LayoutTotals:
    """All layout work, the longest first; `device_ns` is the union on each device."""

    work: tuple[LayoutWork, ...]
    device_ns: int


def measure_layout_work(analysis: TraceAnalysis, windows: Windows, findings: Sequence[Finding]) -> LayoutTotals:
    """Return device time that changes layouts; `findings` is the ordered result of `find_layout_copies` for the same
    analysis. Copies on the host are left out."""
    launched = set(windows.launched)
    rows: list[LayoutWork] = []
    spans: dict[int | None, list[tuple[int, int]]] = defaultdict(list)
    for group, finding in zip(group_copies(analysis), findings, strict=True):
        by_operator: dict[str, list[TraceCopy]] = defaultdict(list)
        for copy in group.copies:
            if not launched.isdisjoint(copy.activities):
                by_operator[get_operator_name(analysis, copy.operator)].append(copy)
        for operator, copies in by_operator.items():
            activities = [analysis.tree.activities[index] for copy in copies for index in copy.activities]
            for activity in activities:
                spans[activity.device].append((activity.start_ns, activity.end_ns))
            rows.append(
                LayoutWork(
                    operator=operator,
                    finding=finding,
                    copies=len(copies),
                    kernels=tuple(dict.fromkeys(activity.name for activity in activities)),
                    bytes=sum_known(copy.bytes for copy in copies),
                    total_ns=sum(activity.duration_ns for activity in activities),
                )
            )
    return LayoutTotals(
        tuple(sorted(rows, key=lambda row: -row.total_ns)), device_ns=sum(map(measure_union, spans.values()))
    )
