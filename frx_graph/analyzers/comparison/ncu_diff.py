"""Compare two measurements of Nsight Compute, kernel by kernel: time first, then counters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from frx_graph.analyzers.comparison.matching import (
    Change,
    FindingChange,
    KernelFinding,
    KnownKernel,
    MatchedBy,
    Matching,
    Pair,
    Winner,
    compare_findings,
    list_changes,
    match_kernels,
    pick_lesser,
)
from frx_graph.analyzers.comparison.measured_time import TIME_BAND
from frx_graph.analyzers.kernels.gpu_view import count_dram_bytes
from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.kernels.labels import INSUFFICIENT
from frx_graph.analyzers.kernels.metric_levels import add_derived_values
from frx_graph.analyzers.kernels.speed_of_light import Bound, compute_warp_stalls, judge_speed_of_light
from frx_graph.analyzers.layers import NcuLayer

_DESCRIPTIVE = frozenset({INSUFFICIENT, "memory_bandwidth_bound"})
"""Labels for the limit of a kernel. Many fixes aim for memory traffic as fast as the device allows."""


@dataclass(frozen=True, slots=True)
class NcuKernelDiff:
    """Two versions of a kernel, with all launches of each added up. `changes` and `stalls` include equal values; a
    metric that neither side has is left out. `faster` compares the time of all launches, if known."""

    kernel_a: str
    kernel_b: str
    matched_by: MatchedBy
    device_a: str
    device_b: str
    launches_a: int
    launches_b: int
    seconds_a: float | None
    seconds_b: float | None
    bound_a: Bound
    bound_b: Bound
    faster: Winner
    changes: tuple[Change, ...]
    stalls: tuple[Change, ...]

    @property
    def speedup_x(self) -> float | None:
        """Return the time of `a` over that of `b`; None if there is no finite number."""
        if self.seconds_a is None or not self.seconds_b:
            return None
        ratio = self.seconds_a / self.seconds_b
        return ratio if math.isfinite(ratio) else None


@dataclass(frozen=True, slots=True)
class NcuDiff:
    """Two measurements; the kernels that took longest come first."""

    kernels: tuple[NcuKernelDiff, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    findings: tuple[FindingChange, ...]


def match_measured(a: NcuLayer, b: NcuLayer) -> Matching[KernelSummary]:
    """Match the kernels of both sides by name, and those of one name on several devices by device."""
    ours, theirs = ([kernel.summary for kernel in layer.analysis.kernels] for layer in (a, b))
    return match_kernels(ours, theirs, lambda one: one.kernel, lambda one: (one.device, one.compute_capability))


def compare_ncu(a: NcuLayer, b: NcuLayer, matching: Matching[KernelSummary]) -> NcuDiff:
    """Return the differences; `matching` is the result of `match_measured`."""
    known = matching.map(_identify_kernel)
    kernels = tuple(sorted(map(_compare_kernel, matching.pairs), key=_sort_longest_first))
    faster = {
        (KnownKernel(one.kernel_a, one.device_a), KnownKernel(one.kernel_b, one.device_b)): one.faster
        for one in kernels
    }
    findings = compare_findings("ncu", known, _list_findings(a), _list_findings(b))
    return NcuDiff(
        kernels=kernels,
        only_a=tuple(kernel.name for kernel in known.only_a),
        only_b=tuple(kernel.name for kernel in known.only_b),
        findings=tuple(
            change
            for change in findings
            # The limit of the faster version is not a new defect.
            if change.kernel_a is None
            or change.kernel_b is None
            or faster[change.kernel_a, change.kernel_b] is not (Winner.A if change.a > change.b else Winner.B)
        ),
    )


def _identify_kernel(kernel: KernelSummary) -> KnownKernel:
    return KnownKernel(kernel.kernel, kernel.device)


def _sort_longest_first(kernel: NcuKernelDiff) -> tuple[float, list[str], list[str]]:
    names = sorted((kernel.kernel_a, kernel.kernel_b))
    return -max(kernel.seconds_a or 0.0, kernel.seconds_b or 0.0), names, sorted((kernel.device_a, kernel.device_b))


def _list_findings(layer: NcuLayer) -> tuple[KernelFinding, ...]:
    return tuple(
        KernelFinding(label.label, _identify_kernel(kernel.summary), label.label not in _DESCRIPTIVE)
        for kernel in layer.analysis.kernels
        for label in kernel.labels
    )


def _compare_kernel(pair: Pair[KernelSummary]) -> NcuKernelDiff:
    a, b = pair.a, pair.b
    ours, theirs = _collect_numbers(a), _collect_numbers(b)
    stalls_a, stalls_b = _list_stalls(a), _list_stalls(b)
    reasons = {one: max(stalls_a.get(one, 0.0), stalls_b.get(one, 0.0)) for one in stalls_a.keys() | stalls_b.keys()}
    return NcuKernelDiff(
        kernel_a=a.kernel,
        kernel_b=b.kernel,
        matched_by=pair.by,
        device_a=a.device,
        device_b=b.device,
        launches_a=a.launches,
        launches_b=b.launches,
        seconds_a=a.seconds,
        seconds_b=b.seconds,
        bound_a=judge_speed_of_light(a.values, a.rules).bound,
        bound_b=judge_speed_of_light(b.values, b.rules).bound,
        faster=pick_lesser(a.seconds, b.seconds, TIME_BAND),
        changes=list_changes((one for one in _METRICS if one[0] in ours or one[0] in theirs), ours, theirs),
        stalls=list_changes(
            ((one, one, "%") for one in sorted(reasons, key=lambda one: (-reasons[one], one))), stalls_a, stalls_b
        ),
    )


_METRICS = (
    ("seconds_per_launch", "Time of a launch", "s"),
    ("sm_frequency", "SM clock", "hz"),
    ("compute_throughput", "Compute throughput", "%"),
    ("memory_throughput", "Memory throughput", "%"),
    ("dram_throughput", "DRAM throughput", "%"),
    ("dram_bandwidth", "DRAM bandwidth", "byte/s"),
    ("dram_bytes", "DRAM traffic", "byte"),
    ("l1_hit_rate", "L1 hit rate", "%"),
    ("l2_hit_rate", "L2 hit rate", "%"),
    ("sectors_per_load", "Sectors a global load", ""),
    ("sectors_per_store", "Sectors a global store", ""),
    ("shared_bank_conflicts", "Shared bank conflicts", ""),
    ("issue_slots_busy", "Issue slots busy", "%"),
    ("eligible_warps", "Warps ready to issue", ""),
    ("tensor_pipe", "Tensor pipe", "%"),
    ("achieved_occupancy", "Achieved occupancy", "%"),
    ("theoretical_occupancy", "Theoretical occupancy", "%"),
    ("waves", "Waves", ""),
    ("registers_per_thread", "Registers a thread", ""),
    ("static_shared_memory", "Static shared memory of a block", "byte"),
    ("dynamic_shared_memory", "Dynamic shared memory of a block", "byte"),
)


def _collect_numbers(kernel: KernelSummary) -> Mapping[str, float]:
    values = kernel.values
    derived = {
        "seconds_per_launch": None if kernel.seconds is None else kernel.seconds / kernel.launches,
        "dram_bytes": count_dram_bytes(values),
    }
    return {**add_derived_values(values), **{name: value for name, value in derived.items() if value is not None}}


def _list_stalls(kernel: KernelSummary) -> Mapping[str, float]:
    """Return percent of the time by reason."""
    stalls = compute_warp_stalls(kernel.values)
    return {} if stalls is None else {reason: 100.0 * share for reason, share in stalls.shares.items()}
