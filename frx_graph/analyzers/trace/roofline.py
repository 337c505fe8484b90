"""Place each operator of a trace on the roofline: its time, bytes and FLOPs at each call site.

On a device, an operator's time is the time of the kernels that it launched itself; on the CPU, its time without
callees. Work that a layout copy claims is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from frx_graph.advice import RooflinePoint
from frx_graph.analyzers.trace.analysis import TraceAnalysis, average_per_step, sum_known
from frx_graph.analyzers.trace.costs import CallCost, CallCosts, is_memory_bound_operator
from frx_graph.analyzers.trace.kernel_names import MEMORY_BOUND, classify_kernel, is_on_tensor_cores
from frx_graph.analyzers.trace.operators import find_outermost, get_phase, is_operator
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.trace.events import ActivityKind, DeviceActivity
from frx_graph.evidence.trace.tree import NONE
from frx_graph.rules.gpu_profile import GpuPeaks

LATENCY_NS = 20_000
"""Traffic below which no operator counts as memory-bound. A launched kernel, or a dispatched operator, takes up to ten
microseconds for nothing; in twice that time, hundreds of GB/s move data that still fits a cache."""
LATENCY_RATE = 0.1
"""Part of the peak bandwidth below which something other than bandwidth limits a kernel."""


@dataclass(frozen=True, slots=True)
class Work:
    """Device or CPU work of one operator call. `named_memory_bound` means that every kernel is of a memory-bound kind.
    `operator` is `NONE` for kernels without one; `caller` is the outermost operator above it. `tensor_cores` means
    that a kernel is known to use them."""

    operator: int
    caller: int
    time_ns: int
    kernels: int
    named_memory_bound: bool
    tensor_cores: bool
    cost: CallCost | None
    moved_bytes: int | None
    """Bytes of copies and fills, read and written, from the trace."""

    @property
    def bytes(self) -> int | None:
        """Return the traffic of the call."""
        return self.cost.bytes if self.cost is not None else self.moved_bytes


def measure_work(analysis: TraceAnalysis) -> tuple[Work, ...]:
    """Return the work of every operator call within the steps, in order of operators."""
    measure = _measure_device_work if analysis.on_device else _measure_host_work
    return tuple(measure(analysis, CallCosts(analysis.tree), find_outermost(analysis.tree)))


def _measure_device_work(analysis: TraceAnalysis, costs: CallCosts, callers: Sequence[int]) -> Iterator[Work]:
    claimed = {activity for copy in analysis.copies for activity in copy.activities}
    by_operator: dict[int, list[DeviceActivity]] = defaultdict(list)
    for index in analysis.work:
        if index not in claimed:
            by_operator[analysis.tree.launcher[index]].append(analysis.tree.activities[index])
    for operator, activities in sorted(by_operator.items(), key=itemgetter(0)):
        kernels = [activity.name for activity in activities if activity.kind is ActivityKind.KERNEL]
        yield Work(
            operator=operator,
            caller=callers[operator] if operator != NONE else NONE,
            time_ns=sum(activity.duration_ns for activity in activities),
            kernels=len(activities),
            named_memory_bound=all(classify_kernel(name) in MEMORY_BOUND for name in kernels),
            tensor_cores=any(map(is_on_tensor_cores, kernels)),
            cost=costs.count_call(operator) if operator != NONE else None,
            moved_bytes=sum_known(map(_count_moved_bytes, activities)),
        )


def _count_moved_bytes(activity: DeviceActivity) -> int | None:
    if activity.kind is ActivityKind.KERNEL or activity.bytes is None:
        return None
    return activity.bytes * (2 if activity.kind is ActivityKind.MEMCPY else 1)


def _measure_host_work(analysis: TraceAnalysis, costs: CallCosts, callers: Sequence[int]) -> Iterator[Work]:
    tree = analysis.tree
    claimed = {copy.maker for copy in analysis.copies}
    inside = [False] * len(tree.operators)
    for index, (operator, parent) in enumerate(zip(tree.operators, tree.parents, strict=True)):
        inside[index] = index in claimed or (parent != NONE and inside[parent])
        if inside[index] or not is_operator(operator) or analysis.steps.find_position(operator.start_ns) is None:
            continue
        bound = is_memory_bound_operator(operator.name)
        yield Work(index, callers[index], tree.self_ns[index], 1, bound, False, costs.count_call(index), None)


def is_memory_bound(work: Work, peaks: GpuPeaks | None) -> bool:
    """Return True if the kernels are of a memory-bound kind, or the call's intensity is below the ridge point.

    Returns False for work that is too short, or moves too little for its time, to wait for memory.
    """
    if work.time_ns < LATENCY_NS * work.kernels:
        return False
    if peaks is None:
        return work.named_memory_bound
    if work.bytes is not None and work.bytes * 1e9 / work.time_ns < LATENCY_RATE * peaks.bandwidth_bytes_per_s:
        return False
    if work.named_memory_bound or work.cost is None or not work.cost.dtype.is_floating_point:
        return work.named_memory_bound
    # Float32 on tensor cores is rounded to TF32.
    float32 = peaks.tf32_flops if work.tensor_cores else peaks.float32_flops
    arithmetic = peaks.tensor_flops if work.cost.dtype.itemsize < 4 else float32
    return arithmetic is not None and work.cost.intensity < arithmetic / peaks.bandwidth_bytes_per_s


def compute_roofline_points(analysis: TraceAnalysis, work: Sequence[Work]) -> tuple[RooflinePoint, ...]:
    """Return one point for all calls of an operator at one call site, phase and dtype; figures are per step."""
    groups: dict[tuple[str, object, Phase, str], list[Work]] = defaultdict(list)
    for item in work:
        if item.cost is not None and item.time_ns:
            name, place = analysis.tree.operators[item.operator].name, analysis.find_site(item.caller).place
            groups[name, place, get_phase(analysis.tree, item.operator), item.cost.dtype.value].append(item)
    steps = len(analysis.steps)
    return tuple(
        RooflinePoint(
            operator=name,
            site=analysis.merge_sites([item.caller for item in items]),
            phase=phase,
            dtype=dtype,
            count=average_per_step(len(items), analysis.steps),
            flops=sum(item.cost.flops for item in items if item.cost is not None) // steps,
            bytes=sum(item.cost.bytes for item in items if item.cost is not None) // steps,
            seconds=sum(item.time_ns for item in items) / 1e9 / steps,
        )
        for (name, _, phase, dtype), items in groups.items()
    )
