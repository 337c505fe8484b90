"""Detect blocks with so much shared memory that few of them, or one, fit on a multiprocessor.

Certain if the sizes of all static arrays are numbers. For a named GPU, fewer than three blocks count as few.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.evidence.cuda.source import CudaSource, Space
from frx_graph.rules.gpu_profile import GpuProfile

LARGE = 32 << 10
"""Limit in bytes. With more, 1 block fits into the 64 KiB of sm_75, and 3 into the 100 KiB of sm_86 and sm_89. A block
may have 48 KiB without an opt-in."""
FEW = 3


def detect(source: CudaSource, gpu: GpuProfile | None) -> Iterator[Occurrence]:
    """Yield one occurrence per kernel."""
    limits = None if gpu is None else gpu.architecture.limits
    large = LARGE if limits is None else limits.shared_bytes // FEW - limits.reserved_shared_bytes
    for kernel in source.kernels:
        arrays = [one for one in kernel.arrays if one.space is Space.SHARED and one.bytes]
        total = sum(one.bytes or 0 for one in arrays)
        if total > large:
            largest = max(arrays, key=lambda one: one.bytes or 0)
            said = f"{total:,} bytes of shared memory a block, `{largest.name}` the largest"
            yield Occurrence(kernel.name, largest.line, said)
