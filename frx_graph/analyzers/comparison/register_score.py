"""How well a side does with registers: whether they leave every warp its place, and whether they are enough.

The score of a kernel is the part of a multiprocessor's threads for which there are registers, `full / registers`, at
most 1, as in CUDA's occupancy calculation, times the part of a thread's values that are kept in registers,
`registers / (registers + spilled words)`. Registers are those that Nsight Compute has seen, else those that ptxas has
given; spills only ptxas knows. Virtual registers say nothing (evidence: of 339 kernels with 102 in the median the
assembler needed 16) and are not scored.
"""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.analyzers.comparison.score_component import Component, Evidence, mean, measured
from frx_graph.analyzers.kernels.occupancy_model import most_registers
from frx_graph.analyzers.layers import Layers
from frx_graph.evidence.ptx.ptxas import Assembled

FULL_REGISTERS = 32
"""Of a thread, with which 2,048 threads fit beside 65,536 registers, as from Volta on but for consumers' devices; taken
where the GPU is not known, or not the same. `technical specifications per compute capability` of
https://docs.nvidia.com/cuda/cuda-c-programming-guide/"""
_WORD = 4


def register_components(a: Layers, b: Layers) -> Sequence[Sequence[Component]]:
    """One group: registers and spills are the same quantity, whoever tells them."""
    full_a, full_b = _full(a), _full(b)
    full = full_a if full_a is not None and full_a == full_b else FULL_REGISTERS
    (fit_a, by_a), (fit_b, by_b) = _fit(a, full), _fit(b, full)
    kept = Component("values_in_registers", _kept(a), _kept(b), "ptxas", "ptxas")
    fit = Component("threads_with_registers", fit_a, fit_b, by_a, by_b)
    if kept.a is None or kept.b is None:
        return ((fit,),)
    return (
        (
            Component(
                "threads_with_registers_times_values_in_registers",
                _times(fit.a, kept.a),
                _times(fit.b, kept.b),
                by_a,
                by_b,
            ),
        ),
    )


def _times(one: float | None, other: float) -> float | None:
    return None if one is None else one * other


def _fit(layers: Layers, full: int) -> tuple[float | None, Evidence]:
    by_ncu = measured(layers.ncu, lambda kernel: _share(kernel.values.get("registers_per_thread"), full))
    if by_ncu is not None:
        return by_ncu, "ncu"
    return mean(_share(one.registers, full) for one in _assembled(layers)), "ptxas"


def _share(registers: float | None, full: int) -> float | None:
    if registers is None:
        return None
    return min(1.0, full / registers) if registers > 0 else 1.0


def _kept(layers: Layers) -> float | None:
    return mean(_kept_of(one) for one in _assembled(layers))


def _kept_of(one: Assembled) -> float:
    # Each spilled value is stored once, and loaded as often as it is needed.
    spilled = (one.spill_store_bytes or one.spill_load_bytes) / _WORD
    return one.registers / (one.registers + spilled) if spilled else 1.0


def _assembled(layers: Layers) -> tuple[Assembled, ...]:
    """Of all kernels; empty if one of them is not known."""
    if layers.ptx is None:
        return ()
    known = [kernel.assembled for kernel in layers.ptx.analysis.kernels]
    found = tuple(one for one in known if one is not None)
    return found if len(found) == len(known) else ()


def _full(layers: Layers) -> int | None:
    """Registers of a thread with which every warp finds place on the side's GPU; None where that is not known."""
    if layers.ncu is not None:
        limits = {
            None if kernel.gpu is None else kernel.gpu.profile.architecture.architecture: None
            if kernel.gpu is None
            else kernel.gpu.profile.architecture.limits
            for kernel in layers.ncu.analysis.kernels
        }
        known = [one for one in limits.values() if one is not None]
        return most_registers(known[0]) if len(limits) == len(known) == 1 else None
    return None if layers.ptx is None else layers.ptx.analysis.full_occupancy_registers
