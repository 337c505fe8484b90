"""Define the components of the four scores: how well each side uses registers, memory, arithmetic and the device.

docs/compare.md has the formulas. Measured components come before static ones; each function returns its groups in that
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from frx_graph.analyzers.comparison.score_component import (
    Component,
    Evidence,
    average_measured,
    average_percentage,
    compare_score,
    compute_mean,
    score_ptx,
    score_source,
)
from frx_graph.analyzers.kernels.coalescing import USES, judge_sector_use
from frx_graph.analyzers.kernels.gpu_view import count_dram_bytes
from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.kernels.labels import compute_issue_utilization, is_matrix_product
from frx_graph.analyzers.kernels.occupancy_model import compute_most_registers
from frx_graph.analyzers.kernels.speed_of_light import compute_warp_stalls
from frx_graph.analyzers.layers import Layers, NcuLayer
from frx_graph.evidence.ptx.ptxas import Assembled
from frx_graph.rules.cuda_card import Category

FULL_REGISTERS = 32
"""Registers per thread at which 2,048 threads fit into 65,536 registers, as on data-centre GPUs since Volta. Used if
the GPU is unknown or differs. Source: technical specifications per compute capability,
https://docs.nvidia.com/cuda/cuda-c-programming-guide/"""
_WORD = 4
_ALIKE = 0.05
"""Difference of `coalescing` up to which hit rates compare."""
_LEAST_TRAFFIC = 1e6
"""Bytes. Less traffic proves nothing: such data stays in L2."""
_COMPUTE_LABELS = frozenset({"ptx_fp64_usage", "ptx_branch_divergence_risk"})


def score_registers(a: Layers, b: Layers) -> Sequence[Sequence[Component]]:
    """Return one group: threads with registers, times the part of their values kept in registers.

    Nsight Compute's register counts come before those of ptxas, but only ptxas knows spills. Virtual registers are not
    scored: of 339 kernels with 102 in the median, the assembler needed 16.
    """
    full_a, full_b = _find_full_registers(a), _find_full_registers(b)
    full = full_a if full_a is not None and full_a == full_b else FULL_REGISTERS
    (fit_a, by_a), (fit_b, by_b) = _score_fit(a, full), _score_fit(b, full)
    kept_a, kept_b = (compute_mean(map(_compute_kept, _list_assembled(side))) for side in (a, b))
    if kept_a is None or kept_b is None:
        return ((Component("threads_with_registers", fit_a, fit_b, by_a, by_b),),)
    score_a, score_b = (None if fit is None else fit * kept for fit, kept in ((fit_a, kept_a), (fit_b, kept_b)))
    return ((Component("threads_with_registers_times_values_in_registers", score_a, score_b, by_a, by_b),),)


def score_memory(a: Layers, b: Layers, *, same_work: bool) -> Sequence[Sequence[Component]]:
    """Return the memory components of counters and source.

    For the same work, `traffic` is the lesser side's DRAM bytes over this side's. Otherwise DRAM throughput replaces
    it, and hit rates if both sides access memory alike. `coalescing` is the needed share of the sectors of a warp's
    loads or stores, whichever is worse.
    """
    traffic = _score_traffic(a, b) if same_work else None
    coalescing = _score_measured("coalescing", a, b, _score_coalescing)
    # Scattered sectors hit L1 for the other threads of the warp: whole ones lower the hit rates.
    alike = coalescing.a is not None and coalescing.b is not None and abs(coalescing.a - coalescing.b) < _ALIKE
    names = ("dram_throughput", "l1_hit_rate", "l2_hit_rate") if alike else ("dram_throughput",)
    moved = [_score_percentage(name, a, b) for name in names] if traffic is None else [traffic]
    return (
        [*moved, coalescing],
        [_score_findings("memory_findings", a, b, Category.MEMORY)],
    )


def score_launches(a: Layers, b: Layers) -> Sequence[Sequence[Component]]:
    """Return the launch components of counters and source.

    Measured components are the achieved occupancy, and its part of the theoretical one; a grid that is too small lowers
    it. The static component is the most that blocks of that size and shared memory can fill.
    """
    return (
        [
            _score_percentage("achieved_occupancy", a, b),
            _score_measured("reached_of_theoretical", a, b, _score_reached_occupancy),
        ],
        [
            _score_findings("launch_findings", a, b, Category.LAUNCH, Category.OCCUPANCY),
            compare_score("launch_bound", "source", a, b, _score_launch_bound),
        ],
    )


def score_compute(a: Layers, b: Layers) -> Sequence[Sequence[Component]]:
    """Return the arithmetic components of counters, source and PTX. The tensor pipe counts only for kernels that
    multiply matrices."""
    counters = [
        _score_measured("issue_slots_busy", a, b, _score_issue_slots),
        _score_measured("not_stalled", a, b, _score_stalls),
    ]
    if _is_matrix_product(a.ncu) and _is_matrix_product(b.ncu):
        counters.append(_score_percentage("tensor_pipe", a, b))
    categories = (Category.CONTROL_FLOW, Category.SYNCHRONIZATION, Category.TENSOR_CORES)
    labels = compare_score("compute_labels", "ptx", a, b, lambda side: score_ptx(side, _COMPUTE_LABELS))
    return counters, [_score_findings("compute_findings", a, b, *categories), labels]


def _score_measured(name: str, a: Layers, b: Layers, value: Callable[[KernelSummary], float | None]) -> Component:
    return compare_score(name, "ncu", a, b, lambda side: average_measured(side.ncu, value))


def _score_percentage(name: str, a: Layers, b: Layers) -> Component:
    return compare_score(name, "ncu", a, b, lambda side: average_percentage(side.ncu, name))


def _score_findings(name: str, a: Layers, b: Layers, *categories: Category) -> Component:
    return compare_score(name, "source", a, b, lambda side: score_source(side, categories))


def _find_full_registers(layers: Layers) -> int | None:
    """Return the registers per thread at which every warp fits on the side's GPU, if known."""
    if layers.ncu is None:
        return None if layers.ptx is None else layers.ptx.analysis.full_occupancy_registers
    architectures = {
        None if kernel.gpu is None else kernel.gpu.profile.architecture.architecture: kernel.gpu
        for kernel in layers.ncu.analysis.kernels
    }
    (gpu,) = architectures.values() if len(architectures) == 1 else (None,)
    limits = None if gpu is None else gpu.profile.architecture.limits
    return None if limits is None else compute_most_registers(limits)


def _score_fit(layers: Layers, full: int) -> tuple[float | None, Evidence]:
    def share(registers: float | None) -> float | None:
        return None if registers is None else min(1.0, full / registers) if registers > 0 else 1.0

    by_ncu = average_measured(layers.ncu, lambda kernel: share(kernel.values.get("registers_per_thread")))
    if by_ncu is not None:
        return by_ncu, "ncu"
    return compute_mean(share(one.registers) for one in _list_assembled(layers)), "ptxas"


def _compute_kept(one: Assembled) -> float:
    # Each spilled value is stored once, and loaded as often as it is needed.
    spilled = (one.spill_store_bytes or one.spill_load_bytes) / _WORD
    return one.registers / (one.registers + spilled) if spilled else 1.0


def _list_assembled(layers: Layers) -> tuple[Assembled, ...]:
    """Return the ptxas results for all kernels; nothing if one is unknown."""
    known = [] if layers.ptx is None else [kernel.assembled for kernel in layers.ptx.analysis.kernels]
    found = tuple(one for one in known if one is not None)
    return found if len(found) == len(known) else ()


def _score_traffic(a: Layers, b: Layers) -> Component | None:
    ours, theirs = _sum_traffic(a.ncu), _sum_traffic(b.ncu)
    if ours is None or theirs is None or max(ours, theirs) < _LEAST_TRAFFIC:
        return None
    least = min(ours, theirs)
    return Component("traffic", least / ours if ours else 1.0, least / theirs if theirs else 1.0, "ncu", "ncu")


def _sum_traffic(layer: NcuLayer | None) -> float | None:
    """Return the DRAM bytes of all launches; None if a kernel has no count."""
    moved = []
    for kernel in () if layer is None else [one.summary for one in layer.analysis.kernels]:
        counted, bandwidth = count_dram_bytes(kernel.values), kernel.values.get("dram_bandwidth")
        if counted is None and bandwidth is not None and kernel.seconds is not None:
            counted = bandwidth * kernel.seconds
        if counted is None:
            return None
        moved.append(counted)
    return math.fsum(moved) if moved else None


def _score_coalescing(kernel: KernelSummary) -> float | None:
    """Return the needed share of the sectors of a kernel's loads or stores, whichever is worse."""
    judged = [judge_sector_use(kernel.kernel, kernel.values, use) for use in USES]
    return min((1 / one.excess for one in judged if one is not None), default=None)


def _score_reached_occupancy(kernel: KernelSummary) -> float | None:
    achieved, theoretical = kernel.values.get("achieved_occupancy"), kernel.values.get("theoretical_occupancy")
    return achieved / theoretical if achieved is not None and theoretical else None


def _score_launch_bound(layers: Layers) -> float | None:
    launches = () if layers.source is None else layers.source.analysis.launches
    return compute_mean(max((one.occupancy for one in launch.residency), default=None) for launch in launches)


def _is_matrix_product(layer: NcuLayer | None) -> bool:
    return layer is not None and all(
        is_matrix_product(kernel.summary.kernel, kernel.summary.values) for kernel in layer.analysis.kernels
    )


def _score_issue_slots(kernel: KernelSummary) -> float | None:
    busy = compute_issue_utilization(kernel.values)
    return None if busy is None else busy / 100.0


def _score_stalls(kernel: KernelSummary) -> float | None:
    stalls = compute_warp_stalls(kernel.values)
    if stalls is None:
        return None
    return 1.0 if stalls.dominant is None else 1.0 - stalls.shares[stalls.dominant]
