"""Label the bottlenecks of one kernel, each with its score and evidence.

A label needs evidence and a verdict that makes it matter: a low hit rate slows no kernel that computes at its peak.
Without a measurement there is no label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from frx_graph.analyzers.kernels.coalescing import USES, judge_sector_use
from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.kernels.occupancy_model import BLOCK_SIZE, Limiter
from frx_graph.analyzers.kernels.speed_of_light import (
    MEMORY,
    SYNCHRONISATION,
    Bound,
    SpeedOfLight,
    WarpStalls,
    compute_warp_stalls,
    judge_speed_of_light,
)

DRAM_SATURATED_PCT = 60.0
"""Nsight Compute's own line between a kernel limited by memory latency and one limited by something else."""
STALL_SHARE = 0.2
"""Share of the warps' resident time; below it, the largest reason is one among several."""
L1_HIT_PCT = 40.0
L2_HIT_PCT = 50.0
_STREAM_L1_HIT_PCT = 1.0
"""With fewer hits nothing is read twice while L1 holds it, as in a stream."""
TENSOR_PIPE_PCT = 30.0
OCCUPANCY_PCT = 50.0
ADEQUATE_OCCUPANCY_PCT = 25.0
"""With a quarter of the warps, a kernel of large tiles keeps the tensor cores busy."""
REACHED = 0.75
"""Part of the theoretical occupancy; the grid, or blocks of unequal length, limit a kernel below it."""
_FULL_WAVES = 2.0
"""A grid that fills the device this often is not too small, and blocks of unequal length even out."""
ELIGIBLE_WARPS = 1.0
SCHEDULER_ACTIVE_PCT = 50.0
ISSUE_PCT = 40.0
INSUFFICIENT = "insufficient_ncu_data"

_MATRIX_PRODUCT = re.compile(
    r"gemm|gemv|conv(?!ert|ersion)|(?<![a-z])(?:wg|[wxhibdq])?mma(?![a-z])|cutlass|cublas|fmha|attention|matmul",
    re.IGNORECASE,
)
"""Names that are not conversions, nor the gamma of a normalisation."""
_LIBRARY = re.compile(
    r"cutlass|cublas|cudnn|(?<![a-z])(?:maxwell|pascal|volta|turing|ampere|hopper)_|sm\d+_xmma|nvjet|\bcask"
    r"|\b(?:cub|thrust|flash|at::native)::|fmha|nccl|rccl|miopen|\bcijk_",
    re.IGNORECASE,
)
"""Kernels whose launch and resources a library chooses."""
_TENSOR_WORK = ("tensor_instructions", "tensor_fp16_operations", "tensor_bf16_operations", "tensor_tf32_operations")
_STALLS = (("warp_stall_memory", MEMORY, "memory"), ("warp_stall_sync", SYNCHRONISATION, "other warps"))
_LIMITED_BY = {
    Limiter.REGISTERS: "occupancy_limited_by_registers",
    Limiter.SHARED_MEMORY: "occupancy_limited_by_shared_memory",
    **dict.fromkeys(BLOCK_SIZE, "occupancy_limited_by_block_size"),
}
_MATTERS = frozenset({Bound.LATENCY, Bound.UNKNOWN})


@dataclass(frozen=True, slots=True)
class KernelLabel:
    """One bottleneck of one kernel; `score` is 0..1. It is `estimated` if `Estimates` replace a counter."""

    label: str
    score: float
    evidence: str
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Stand-ins for counters that were not measured: DRAM traffic in percent of the data sheet's bandwidth, the
    theoretical occupancy, its limiters, and how often a grid fills the device at least; None or empty if unknown."""

    dram_pct: float | None = None
    occupancy_pct: float | None = None
    limiters: tuple[Limiter, ...] = ()
    least_waves: float | None = None


@dataclass(frozen=True, slots=True)
class _KernelEvidence:
    kernel: KernelSummary
    values: Mapping[str, float]
    sol: SpeedOfLight
    stalls: WarpStalls | None
    estimates: Estimates


_NOTHING_KNOWN = Estimates()


def label_kernel(kernel: KernelSummary, estimates: Estimates = _NOTHING_KNOWN) -> tuple[KernelLabel, ...]:
    """Return the labels of a kernel, the highest score first; only `INSUFFICIENT` if nothing is known. Counters come
    before `estimates`."""
    seen = _KernelEvidence(
        kernel,
        kernel.values,
        judge_speed_of_light(kernel.values, kernel.rules),
        compute_warp_stalls(kernel.values),
        estimates,
    )
    found = [label for rule in _RULES for label in rule(seen)]
    if not found and seen.sol.bound is Bound.UNKNOWN:
        measured = "compute and memory throughput were not both measured, and no other metric tells a bottleneck"
        return (KernelLabel(INSUFFICIENT, 0.0, measured),)
    return tuple(sorted(found, key=lambda label: (-label.score, label.label)))


def _detect_bandwidth_bound(seen: _KernelEvidence) -> Iterator[KernelLabel]:
    counted = seen.values.get("dram_throughput")
    dram = seen.estimates.dram_pct if counted is None else counted
    if dram is None or dram < DRAM_SATURATED_PCT or seen.sol.bound in (Bound.COMPUTE, Bound.LATENCY):
        return
    if seen.stalls is None or seen.stalls.dominant is None or seen.stalls.dominant in MEMORY:
        of = "its peak" if counted is not None else "the data sheet's bandwidth"
        said = f"DRAM at {dram:.1f} % of {of}"
        yield KernelLabel("memory_bandwidth_bound", min(1.0, dram / 100.0), said, estimated=counted is None)


def _detect_stalls(seen: _KernelEvidence) -> Iterator[KernelLabel]:
    if seen.stalls is None or seen.sol.bound is Bound.COMPUTE:
        return
    for label, reasons, what in _STALLS:
        share = seen.stalls.sum_shares(reasons)
        if seen.stalls.dominant in reasons and share >= STALL_SHARE:
            said = f"warps wait for {what} {share:.0%} of the time ({seen.stalls.dominant})"
            yield KernelLabel(label, min(share, 1.0), said)


def _detect_cache_thrashing(seen: _KernelEvidence) -> Iterator[KernelLabel]:
    # A matrix product that stages tiles in shared memory misses L1 with each load, by design.
    waits = seen.stalls is not None and seen.stalls.dominant in MEMORY
    if seen.sol.bound not in (Bound.MEMORY, Bound.BALANCED) and not (seen.sol.bound is Bound.LATENCY and waits):
        return
    l1, l2 = seen.values.get("l1_hit_rate", L1_HIT_PCT), seen.values.get("l2_hit_rate", L2_HIT_PCT)
    # Data in neither cache is read for the first time: caches do not help a stream. Its stores still hit L2.
    streams = l1 < _STREAM_L1_HIT_PCT or seen.sol.part == "DRAM"
    if l1 < L1_HIT_PCT and l2 >= L2_HIT_PCT and not streams:
        yield KernelLabel("l1_cache_thrashing", 0.5 * (1 - l1 / L1_HIT_PCT), f"L1 hit rate {l1:.1f} %")
    elif l2 < L2_HIT_PCT and l1 >= L1_HIT_PCT and "l1_hit_rate" in seen.values:
        yield KernelLabel("l2_cache_thrashing", 0.5 * (1 - l2 / L2_HIT_PCT), f"L2 hit rate {l2:.1f} %")


def _detect_uncoalesced_access(seen: _KernelEvidence) -> Iterator[KernelLabel]:
    if seen.sol.bound is Bound.COMPUTE:
        return
    judged = (judge_sector_use(seen.kernel.kernel, seen.values, use) for use in USES)
    scattered = [one for one in judged if one is not None and one.is_scattered]
    if scattered:
        worst = max(scattered, key=lambda one: one.score)
        yield KernelLabel("uncoalesced_access", worst.score, "; ".join(one.evidence for one in scattered))


def is_matrix_product(kernel: str, values: Mapping[str, float]) -> bool:
    """Return True if the kernel's name, or its instructions, say so."""
    return _MATRIX_PRODUCT.search(kernel) is not None or any(values.get(name, 0.0) > 0 for name in _TENSOR_WORK)


def _detect_idle_tensor_cores(seen: _KernelEvidence) -> Iterator[KernelLabel]:
    pipe = seen.values.get("tensor_pipe")
    multiplies = is_matrix_product(seen.kernel.kernel, seen.values)
    occupied = seen.values.get("achieved_occupancy", 0.0) >= ADEQUATE_OCCUPANCY_PCT
    if pipe is None or pipe >= TENSOR_PIPE_PCT or not multiplies or not occupied or seen.sol.bound is Bound.MEMORY:
        return
    yield KernelLabel("tensor_core_underutilized", 1 - pipe / TENSOR_PIPE_PCT, f"tensor pipe at {pipe:.1f} %")


def _detect_limited_occupancy(seen: _KernelEvidence) -> Iterator[KernelLabel]:
    measured, theoretical = seen.values.get("achieved_occupancy"), seen.values.get("theoretical_occupancy")
    limiters = [limiter for limiter, share in seen.kernel.limiters.items() if share >= 0.5]
    estimated = theoretical is None
    if theoretical is None:
        theoretical, limiters = seen.estimates.occupancy_pct, limiters or list(seen.estimates.limiters)
    waves = seen.values.get("waves", seen.estimates.least_waves)
    if waves is not None and waves >= 1 and _LIBRARY.search(seen.kernel.kernel):
        return
    # Achieved occupancy cannot exceed the possible one.
    achieved = theoretical if measured is None else measured
    if achieved is None or achieved >= OCCUPANCY_PCT or seen.sol.bound not in _MATTERS:
        return
    score = 1 - achieved / 100.0
    if theoretical is None or not limiters or achieved < REACHED * theoretical:
        if waves is not None and waves >= _FULL_WAVES:
            return
        of = "" if theoretical is None else f" of {theoretical:.1f} % that would be possible"
        yield KernelLabel("occupancy_limited", score, f"achieved occupancy {achieved:.1f} %{of}")
        return
    # If registers are as scarce, a block of another size has as few of them.
    changeable = [one for one in limiters if one not in BLOCK_SIZE] or limiters
    names = {_LIMITED_BY[limiter]: limiter for limiter in changeable}
    for name, limiter in names.items():
        reached = "how much is achieved was not measured" if measured is None else f"{measured:.1f} % achieved"
        why = f"theoretical occupancy {theoretical:.1f} %, limited by {limiter}; {reached}"
        yield KernelLabel(name, score, why, estimated)


def _detect_idle_schedulers(seen: _KernelEvidence) -> Iterator[KernelLabel]:
    eligible, active = seen.values.get("eligible_warps"), seen.values.get("scheduler_active")
    if seen.sol.bound not in _MATTERS:
        return
    if eligible is not None and eligible < ELIGIBLE_WARPS:
        said = f"{eligible:.2f} warps ready to issue in each cycle of a scheduler"
        yield KernelLabel("low_warp_scheduler_utilization", 0.6 * (1 - eligible), said)
    elif active is not None and active < SCHEDULER_ACTIVE_PCT:
        score = 0.6 * (1 - active / SCHEDULER_ACTIVE_PCT)
        yield KernelLabel("low_warp_scheduler_utilization", score, f"schedulers have {active:.1f} % of their warps")


def _detect_idle_issue_slots(seen: _KernelEvidence) -> Iterator[KernelLabel]:
    busy = compute_issue_utilization(seen.values)
    if busy is None or busy >= ISSUE_PCT or seen.sol.bound not in _MATTERS:
        return
    yield KernelLabel("low_issue_efficiency", 0.5 * (1 - busy / ISSUE_PCT), f"an instruction in {busy:.1f} % of cycles")


def compute_issue_utilization(values: Mapping[str, float]) -> float | None:
    """Return the percent of a scheduler's cycles in which it issues, measured or derived."""
    measured, idle = values.get("issue_slots_busy"), values.get("no_eligible")
    return measured if measured is not None or idle is None else 100.0 - idle


_RULES: tuple[Callable[[_KernelEvidence], Iterator[KernelLabel]], ...] = (
    _detect_bandwidth_bound,
    _detect_stalls,
    _detect_cache_thrashing,
    _detect_uncoalesced_access,
    _detect_idle_tensor_cores,
    _detect_limited_occupancy,
    _detect_idle_schedulers,
    _detect_idle_issue_slots,
)
