"""The components of the four scores: how well each side uses registers, memory, arithmetic and the device.

docs/compare.md has the formulas. Measured components come before static ones; each function returns its groups in that
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from frx_graph.analyzers.comparison.score_component import (
    Component,
    Evidence,
    component,
    mean,
    measured,
    percentage,
    ptx_score,
    source_score,
)
from frx_graph.analyzers.kernels.gpu_view import dram_bytes
from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.kernels.labels import (
    COALESCED_SECTORS,
    VECTOR_SECTORS,
    issue_slots_busy,
    multiplies_matrices,
    sectors_per_load,
)
from frx_graph.analyzers.kernels.occupancy_model import most_registers
from frx_graph.analyzers.kernels.speed_of_light import warp_stalls
from frx_graph.analyzers.layers import Layers, NcuLayer
from frx_graph.evidence.ptx.ptxas import Assembled
from frx_graph.rules.cuda_card import Category

FULL_REGISTERS = 32
"""Registers of a thread with which 2,048 threads fit beside 65,536 registers, as from Volta on, consumers' devices
aside. Used if the GPU is unknown or differs. Source: technical specifications per compute capability,
https://docs.nvidia.com/cuda/cuda-c-programming-guide/"""
_WORD = 4
_LEAST_TRAFFIC = 1e6
"""Bytes. Less traffic tells nothing: such data stays in L2."""
_WITHIN = 0.02
_COMPUTE = frozenset({Category.CONTROL_FLOW, Category.SYNCHRONIZATION, Category.TENSOR_CORES})
_COMPUTE_LABELS = frozenset({"ptx_fp64_usage", "ptx_branch_divergence_risk"})


def register_components(a: Layers, b: Layers) -> Sequence[Sequence[Component]]:
    """Return one group: threads that have registers, times the part of their values that is kept in registers.

    Nsight Compute's register counts come before those of ptxas; only ptxas knows spills. Virtual registers are not
    scored: of 339 kernels with 102 in the median, the assembler needed 16.
    """
    full_a, full_b = _full(a), _full(b)
    full = full_a if full_a is not None and full_a == full_b else FULL_REGISTERS
    (fit_a, by_a), (fit_b, by_b) = _fit(a, full), _fit(b, full)
    kept_a, kept_b = (mean(map(_kept, _assembled(side))) for side in (a, b))
    if kept_a is None or kept_b is None:
        return ((Component("threads_with_registers", fit_a, fit_b, by_a, by_b),),)
    score_a, score_b = (None if fit is None else fit * kept for fit, kept in ((fit_a, kept_a), (fit_b, kept_b)))
    return ((Component("threads_with_registers_times_values_in_registers", score_a, score_b, by_a, by_b),),)


def memory_components(a: Layers, b: Layers, *, same_work: bool) -> Sequence[Sequence[Component]]:
    """Return what counters and source tell of memory.

    Of the same work that is `traffic`: the lesser side's DRAM bytes over this side's. Else DRAM throughput and hit
    rates replace it. `coalescing` is 4 sectors over those that a load of a warp took; the 8 and 16 sectors of
    wider loads waste nothing.
    """
    traffic = _traffic(a, b) if same_work else None
    names = ("dram_throughput", "l1_hit_rate", "l2_hit_rate") if traffic is None else ()
    return (
        (
            *((traffic,) if traffic is not None else ()),
            *(component(name, "ncu", percentage(a.ncu, name), percentage(b.ncu, name)) for name in names),
            _measured("coalescing", a, b, _coalescing),
        ),
        (_found("memory_findings", a, b, frozenset({Category.MEMORY})),),
    )


def launch_components(a: Layers, b: Layers) -> Sequence[Sequence[Component]]:
    """Return what counters and source tell of launches.

    Measured are achieved occupancy, and its part of the theoretical one; a grid that is too small lowers it. Static is
    the most that blocks of that size and shared memory can fill.
    """
    return (
        (
            component("achieved_occupancy", "ncu", *(percentage(side.ncu, "achieved_occupancy") for side in (a, b))),
            _measured("reached_of_theoretical", a, b, _reached),
        ),
        (
            _found("launch_findings", a, b, frozenset({Category.LAUNCH, Category.OCCUPANCY})),
            component("launch_bound", "source", _launch_bound(a), _launch_bound(b)),
        ),
    )


def compute_components(a: Layers, b: Layers) -> Sequence[Sequence[Component]]:
    """Return what counters, source and PTX tell of arithmetic; the tensor pipe only of kernels that multiply
    matrices."""
    counters = [_measured("issue_slots_busy", a, b, _issued), _measured("not_stalled", a, b, _not_stalled)]
    if _multiplies(a.ncu) and _multiplies(b.ncu):
        pipes = (percentage(side.ncu, "tensor_pipe") for side in (a, b))
        counters.append(component("tensor_pipe", "ncu", *pipes))
    labels = (ptx_score(side, _COMPUTE_LABELS) for side in (a, b))
    return counters, (_found("compute_findings", a, b, _COMPUTE), component("compute_labels", "ptx", *labels))


def _measured(name: str, a: Layers, b: Layers, value: Callable[[KernelSummary], float | None]) -> Component:
    return component(name, "ncu", measured(a.ncu, value), measured(b.ncu, value))


def _found(name: str, a: Layers, b: Layers, categories: frozenset[Category]) -> Component:
    return component(name, "source", source_score(a, categories), source_score(b, categories))


def _full(layers: Layers) -> int | None:
    """Return the registers of a thread with which every warp finds place on the side's GPU, if that is known."""
    if layers.ncu is None:
        return None if layers.ptx is None else layers.ptx.analysis.full_occupancy_registers
    architectures = {
        None if kernel.gpu is None else kernel.gpu.profile.architecture.architecture: kernel.gpu
        for kernel in layers.ncu.analysis.kernels
    }
    (gpu,) = architectures.values() if len(architectures) == 1 else (None,)
    limits = None if gpu is None else gpu.profile.architecture.limits
    return None if limits is None else most_registers(limits)


def _fit(layers: Layers, full: int) -> tuple[float | None, Evidence]:
    by_ncu = measured(layers.ncu, lambda kernel: _share(kernel.values.get("registers_per_thread"), full))
    if by_ncu is not None:
        return by_ncu, "ncu"
    return mean(_share(one.registers, full) for one in _assembled(layers)), "ptxas"


def _share(registers: float | None, full: int) -> float | None:
    if registers is None:
        return None
    return min(1.0, full / registers) if registers > 0 else 1.0


def _kept(one: Assembled) -> float:
    # Each spilled value is stored once, and loaded as often as it is needed.
    spilled = (one.spill_store_bytes or one.spill_load_bytes) / _WORD
    return one.registers / (one.registers + spilled) if spilled else 1.0


def _assembled(layers: Layers) -> tuple[Assembled, ...]:
    """Return what ptxas says of all kernels; nothing if it does not know one."""
    known = [] if layers.ptx is None else [kernel.assembled for kernel in layers.ptx.analysis.kernels]
    found = tuple(one for one in known if one is not None)
    return found if len(found) == len(known) else ()


def _traffic(a: Layers, b: Layers) -> Component | None:
    ours, theirs = _total_traffic(a.ncu), _total_traffic(b.ncu)
    if ours is None or theirs is None or max(ours, theirs) < _LEAST_TRAFFIC:
        return None
    least = min(ours, theirs)
    return component("traffic", "ncu", least / ours if ours else 1.0, least / theirs if theirs else 1.0)


def _total_traffic(layer: NcuLayer | None) -> float | None:
    """Return the DRAM bytes of all launches; None if those of a kernel are unknown."""
    moved = [] if layer is None else [_kernel_traffic(kernel.summary) for kernel in layer.analysis.kernels]
    known = [traffic for traffic in moved if traffic is not None]
    return math.fsum(known) if moved and len(known) == len(moved) else None


def _kernel_traffic(kernel: KernelSummary) -> float | None:
    counted, bandwidth = dram_bytes(kernel.values), kernel.values.get("dram_bandwidth")
    if counted is not None or bandwidth is None or kernel.seconds is None:
        return counted
    return bandwidth * kernel.seconds


def _coalescing(kernel: KernelSummary) -> float | None:
    sectors = sectors_per_load(kernel.values)
    if sectors is None:
        return None
    if sectors <= 0 or any(abs(sectors - vector) <= _WITHIN * vector for vector in VECTOR_SECTORS):
        return 1.0
    return min(1.0, COALESCED_SECTORS / sectors)


def _reached(kernel: KernelSummary) -> float | None:
    achieved, theoretical = kernel.values.get("achieved_occupancy"), kernel.values.get("theoretical_occupancy")
    return achieved / theoretical if achieved is not None and theoretical else None


def _launch_bound(layers: Layers) -> float | None:
    launches = () if layers.source is None else layers.source.analysis.launches
    return mean(max((one.occupancy for one in launch.residency), default=None) for launch in launches)


def _multiplies(layer: NcuLayer | None) -> bool:
    return layer is not None and all(
        multiplies_matrices(kernel.summary.kernel, kernel.summary.values) for kernel in layer.analysis.kernels
    )


def _issued(kernel: KernelSummary) -> float | None:
    busy = issue_slots_busy(kernel.values)
    return None if busy is None else busy / 100.0


def _not_stalled(kernel: KernelSummary) -> float | None:
    stalls = warp_stalls(kernel.values)
    if stalls is None:
        return None
    return 1.0 if stalls.dominant is None else 1.0 - stalls.shares[stalls.dominant]
