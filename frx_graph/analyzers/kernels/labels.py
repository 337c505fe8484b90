"""Label the bottlenecks of one kernel, each with its score and evidence.

A label needs evidence and a verdict that makes it matter: a low hit rate slows no kernel that computes at its peak.
Without a measurement there is no label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

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
COALESCED_SECTORS = 4.0
"""A warp's 32 neighbouring 4-byte words fill four sectors of 32 bytes."""
VECTOR_SECTORS = (8.0, 16.0)
"""The same for 8 and 16 bytes per thread: more sectors, and none of them wasted."""
_VECTOR_WITHIN = 0.02
MOST_SECTORS = 32.0
TENSOR_PIPE_PCT = 30.0
OCCUPANCY_PCT = 50.0
ADEQUATE_OCCUPANCY_PCT = 25.0
"""With a quarter of the warps, a kernel of large tiles keeps the tensor cores busy."""
REACHED = 0.75
"""Part of the theoretical occupancy; the grid, or blocks of unequal length, limit a kernel below it."""
ELIGIBLE_WARPS = 1.0
SCHEDULER_ACTIVE_PCT = 50.0
ISSUE_PCT = 40.0
INSUFFICIENT = "insufficient_ncu_data"

_MATRIX_PRODUCT = re.compile(
    r"gemm|gemv|conv(?!ert|ersion)|(?<![a-z])(?:wg|[wxhibdq])?mma(?![a-z])|cutlass|cublas|fmha|attention|matmul",
    re.IGNORECASE,
)
"""Names that are not conversions, nor the gamma of a normalisation."""
_TENSOR_WORK = ("tensor_instructions", "tensor_fp16_operations", "tensor_bf16_operations", "tensor_tf32_operations")
_MATTERS = frozenset({Bound.LATENCY, Bound.UNKNOWN})


@dataclass(frozen=True, slots=True)
class KernelLabel:
    """One bottleneck of one kernel; `score` is 0..1. It is `estimated` if `Estimates` replace a counter."""

    label: str
    score: float
    evidence: str
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Estimates:
    """Stand-ins for counters that were not measured: DRAM traffic in percent of the data sheet's bandwidth, the
    theoretical occupancy, and its limiters."""

    dram_pct: float | None = None
    occupancy_pct: float | None = None
    limiters: tuple[Limiter, ...] = ()


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
        kernel, kernel.values, judge_speed_of_light(kernel.values), compute_warp_stalls(kernel.values), estimates
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
    stalled = seen.stalls.dominant if seen.stalls is not None else None
    if stalled is not None and stalled not in MEMORY:
        return
    of = "its peak" if counted is not None else "the data sheet's bandwidth"
    said = f"DRAM at {dram:.1f} % of {of}"
    yield KernelLabel("memory_bandwidth_bound", _clamp_share(dram), said, estimated=counted is None)


def _detect_memory_stalls(seen: _KernelEvidence) -> Iterator[KernelLabel]:
    yield from _detect_dominant_stall(seen, "warp_stall_memory", MEMORY, "memory")


def _detect_sync_stalls(seen: _KernelEvidence) -> Iterator[KernelLabel]:
    yield from _detect_dominant_stall(seen, "warp_stall_sync", SYNCHRONISATION, "other warps")


def _detect_dominant_stall(
    seen: _KernelEvidence, label: str, reasons: frozenset[str], what: str
) -> Iterator[KernelLabel]:
    stalls = seen.stalls
    if stalls is None or stalls.dominant not in reasons or seen.sol.bound is Bound.COMPUTE:
        return
    share = stalls.sum_shares(reasons)
    if share >= STALL_SHARE:
        yield KernelLabel(label, min(share, 1.0), f"warps wait for {what} {share:.0%} of the time ({stalls.dominant})")


def _detect_cache_thrashing(seen: _KernelEvidence) -> Iterator[KernelLabel]:
    l1, l2 = seen.values.get("l1_hit_rate"), seen.values.get("l2_hit_rate")
    if not _is_waiting_for_memory(seen):
        return
    l1_low, l2_low = l1 is not None and l1 < L1_HIT_PCT, l2 is not None and l2 < L2_HIT_PCT
    # Data in neither cache is read for the first time: caches do not help a stream.
    if l1_low and l2_low:
        return
    if l1 is not None and l1_low:
        yield KernelLabel("l1_cache_thrashing", 0.5 * (1 - l1 / L1_HIT_PCT), f"L1 hit rate {l1:.1f} %")
    elif l2 is not None and l2_low and l1 is not None:
        yield KernelLabel("l2_cache_thrashing", 0.5 * (1 - l2 / L2_HIT_PCT), f"L2 hit rate {l2:.1f} %")


def _is_waiting_for_memory(seen: _KernelEvidence) -> bool:
    """Return False if caches do not matter: a matrix product that stages tiles in shared memory misses L1 with each
    load, by design."""
    if seen.sol.bound is Bound.LATENCY:
        return seen.stalls is not None and seen.stalls.dominant in MEMORY
    return seen.sol.bound is not Bound.COMPUTE


def _detect_uncoalesced_access(seen: _KernelEvidence) -> Iterator[KernelLabel]:
    sectors = count_load_sectors(seen.values)
    if sectors is None or sectors <= COALESCED_SECTORS * (1 + _VECTOR_WITHIN) or seen.sol.bound is Bound.COMPUTE:
        return
    if any(abs(sectors - vector) <= _VECTOR_WITHIN * vector for vector in VECTOR_SECTORS):
        return
    score = min(1.0, (sectors - COALESCED_SECTORS) / (MOST_SECTORS - COALESCED_SECTORS))
    yield KernelLabel("uncoalesced_access", score, f"{sectors:.1f} sectors for each global load of a warp")


def count_load_sectors(values: Mapping[str, float]) -> float | None:
    """Return 32-byte sectors for each load of a warp, measured or from both counts; None if unknown."""
    return _count_sectors(values, "load")


def count_store_sectors(values: Mapping[str, float]) -> float | None:
    """Return the same count for stores."""
    return _count_sectors(values, "store")


def _count_sectors(values: Mapping[str, float], what: str) -> float | None:
    measured = values.get(f"sectors_per_{what}")
    if measured is not None:
        return measured
    sectors, requests = values.get(f"{what}_sectors"), values.get(f"{what}_requests")
    return sectors / requests if sectors is not None and requests else None


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
    # Achieved occupancy cannot exceed the possible one.
    achieved = theoretical if measured is None else measured
    if achieved is None or achieved >= OCCUPANCY_PCT or seen.sol.bound not in _MATTERS:
        return
    score = 1 - achieved / 100.0
    if theoretical is None or not limiters or achieved < REACHED * theoretical:
        of = "" if theoretical is None else f" of {theoretical:.1f} % that would be possible"
        yield KernelLabel("occupancy_limited", score, f"achieved occupancy {achieved:.1f} %{of}")
        return
    names = {
        "occupancy_limited_by_registers"
        if limiter is Limiter.REGISTERS
        else "occupancy_limited_by_shared_memory"
        if limiter is Limiter.SHARED_MEMORY
        else "occupancy_limited_by_block_size": limiter
        for limiter in limiters
        # If registers are as scarce, a block of another size has as few of them.
        if limiter not in BLOCK_SIZE or set(limiters) <= BLOCK_SIZE
    }
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


def _clamp_share(pct: float) -> float:
    return min(1.0, max(0.0, pct / 100.0))


_RULES: tuple[Callable[[_KernelEvidence], Iterator[KernelLabel]], ...] = (
    _detect_bandwidth_bound,
    _detect_memory_stalls,
    _detect_sync_stalls,
    _detect_cache_thrashing,
    _detect_uncoalesced_access,
    _detect_idle_tensor_cores,
    _detect_limited_occupancy,
    _detect_idle_schedulers,
    _detect_idle_issue_slots,
)
