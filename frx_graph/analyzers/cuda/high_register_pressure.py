"""Detect per-thread arrays that do not fit into registers, so they are in memory.

Certain if their sizes are numbers, and exceed the registers that a thread can have. That is 255, or fewer if
`__launch_bounds__` promises more threads than the multiprocessor's registers allow. Only the assembler knows the
registers that a kernel really takes (`frx analyze kernel.ptx`).
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence, list_target_limits
from frx_graph.evidence.cuda.source import CudaSource, Kernel, Space
from frx_graph.rules.gpu_profile import GpuProfile, SmLimits

_BYTES = 4


def detect(source: CudaSource, gpu: GpuProfile | None) -> Iterator[Occurrence]:
    """Yield one occurrence per kernel."""
    targets = list_target_limits(gpu).values()
    for kernel in source.kernels:
        arrays = [one for one in kernel.arrays if one.space is Space.LOCAL and one.bytes is not None]
        total = sum(one.bytes or 0 for one in arrays)
        most = max(_limit_registers(kernel, limits) for limits in targets)
        if total > most * _BYTES:
            largest = max(arrays, key=lambda one: one.bytes or 0)
            said = f"arrays of {total:,} bytes a thread, `{largest.name}` the largest, for {most} registers of 4 bytes"
            yield Occurrence(kernel.name, largest.line, said)


def _limit_registers(kernel: Kernel, limits: SmLimits) -> int:
    bounds = kernel.launch_bounds
    if bounds is None or not bounds.threads or bounds.threads < 0:
        return limits.thread_registers
    return max(1, min(limits.thread_registers, limits.registers // (bounds.threads * max(1, bounds.blocks or 1))))
