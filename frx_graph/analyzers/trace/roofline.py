"""Place each operator of a trace on the roofline: its time, bytes and FLOPs at each call site.

On a device, an operator's time is the time of the kernels that it launched itself; on the CPU, its time without
callees. Work that a layout copy claims is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from frx_graph.advice import RooflinePoint
from frx_graph.analyzers.trace.analysis import TraceAnalysis, average_per_step
from frx_graph.analyzers.trace.costs import CallCost, CallCosts, is_memory_bound_operator
from frx_graph.analyzers.trace.kernel_names import MEMORY_BOUND, classify_kernel, is_on_tensor_cores
from frx_graph.analyzers.trace.operators import find_outermost, is_operator
from frx_graph.capture.call_site import CallSite, merge_module_paths
from frx_graph.capture.captured_graph import Phase
from frx_graph.evidence.trace.events import ActivityKind
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
    claimed_activities = {activity for copy in analysis.copies for activity in copy.activities}
    claimed_operators = {copy.maker for copy in analysis.copies}
    costs = CallCosts(analysis.tree)
    callers = find_outermost(analysis.tree)
    if analysis.on_device:
        return _measure_device_work(analysis, costs, callers, claimed_activities)
    return _measure_host_work(analysis, costs, callers, claimed_operators)


def _measure_device_work(
    analysis: TraceAnalysis, costs: CallCosts, callers: Sequence[int], claimed: Collection[int]
) -> tuple[Work, ...]:
    by_operator: dict[int, list[int]] = defaultdict(list)
    for index in analysis.work:
        if index not in claimed:
            by_operator[analysis.tree.launcher[index]].append(index)
    work: list[Work] = []
    for operator, indices in sorted(by_operator.items()):
        activities = [analysis.tree.activities[index] for index in indices]
        kernels = [activity for activity in activities if activity.kind is ActivityKind.KERNEL]
        moved = [
            activity.bytes * (2 if activity.kind is ActivityKind.MEMCPY else 1)
            for activity in activities
            if activity.kind is not ActivityKind.KERNEL and activity.bytes is not None
        ]
        work.append(
            Work(
                operator=operator,
                caller=callers[operator] if operator != NONE else NONE,
                time_ns=sum(activity.duration_ns for activity in activities),
                kernels=len(activities),
                named_memory_bound=all(classify_kernel(kernel.name) in MEMORY_BOUND for kernel in kernels),
                tensor_cores=any(is_on_tensor_cores(kernel.name) for kernel in kernels),
                cost=costs.count_call(operator) if operator != NONE else None,
                moved_bytes=sum(moved) if len(moved) == len(activities) else None,
            )
        )
    return tuple(work)


def _measure_host_work(
    analysis: TraceAnalysis, costs: CallCosts, callers: Sequence[int], claimed: Collection[int]
) -> tuple[Work, ...]:
    tree = analysis.tree
    inside = [False] * len(tree.operators)
    work: list[Work] = []
    for index, (operator, parent) in enumerate(zip(tree.operators, tree.parents, strict=True)):
        inside[index] = index in claimed or (parent != NONE and inside[parent])
        if inside[index] or not is_operator(operator) or analysis.steps.find_position(operator.start_ns) is None:
            continue
        bound = is_memory_bound_operator(operator.name)
        work.append(Work(index, callers[index], tree.self_ns[index], 1, bound, False, costs.count_call(index), None))
    return tuple(work)


def is_memory_bound(work: Work, peaks: GpuPeaks | None) -> bool:
    """Return True if the kernels are of a memory-bound kind, or the call's intensity is below the ridge point.

    Returns False for work that is too short, or moves too little for its time, to wait for memory.
    """
    if work.time_ns < LATENCY_NS * work.kernels:
        return False
    if peaks is not None and work.bytes is not None:
        rate = work.bytes * 1e9 / work.time_ns
        if rate < LATENCY_RATE * peaks.bandwidth_bytes_per_s:
            return False
    if work.named_memory_bound:
        return True
    if work.cost is None or peaks is None or not work.cost.dtype.is_floating_point:
        return False
    arithmetic = _choose_peak(work, work.cost.dtype.itemsize, peaks)
    return arithmetic is not None and work.cost.intensity < arithmetic / peaks.bandwidth_bytes_per_s


def _choose_peak(work: Work, itemsize: int, peaks: GpuPeaks) -> float | None:
    """Return the peak of the computing units: float32 on tensor cores is rounded to TF32."""
    if itemsize < 4:
        return peaks.tensor_flops
    return peaks.tf32_flops if work.tensor_cores else peaks.float32_flops


def compute_roofline_points(analysis: TraceAnalysis, work: Sequence[Work]) -> tuple[RooflinePoint, ...]:
    """Return one point for all calls of an operator at one call site, phase and dtype; figures are per step."""
    groups: dict[tuple[str, object, Phase, str], list[Work]] = defaultdict(list)
    for item in work:
        if item.cost is not None and item.time_ns:
            backward = analysis.tree.backward_of[item.operator] is not None
            phase = Phase.BACKWARD if backward else Phase.FORWARD
            dtype = item.cost.dtype.value
            name = analysis.tree.operators[item.operator].name
            groups[name, analysis.find_site(item.caller).place, phase, dtype].append(item)
    steps = len(analysis.steps)
    points: list[RooflinePoint] = []
    for (name, _, phase, dtype), items in groups.items():
        points.append(
            RooflinePoint(
                operator=name,
                site=merge_sites([analysis.find_site(item.caller) for item in items]),
                phase=phase,
                dtype=dtype,
                count=average_per_step(len(items), analysis.steps),
                flops=sum(item.cost.flops for item in items if item.cost is not None) // steps,
                bytes=sum(item.cost.bytes for item in items if item.cost is not None) // steps,
                seconds=sum(item.time_ns for item in items) / 1e9 / steps,
            )
        )
    return tuple(points)


def merge_sites(sites: Sequence[CallSite]) -> CallSite:
    """Return one site for several instances of a line."""
    return replace(sites[0], module_path=merge_module_paths(site.module_path for site in sites))
