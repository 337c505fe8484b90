"""So much shared memory a block that few blocks, or one, fit on a multiprocessor.

Certain where the sizes of all static arrays are numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.evidence.cuda.source import CudaSource, Space
from frx_graph.passes.cuda.finding import CudaDetector, Sight

LARGE = 32 << 10
"""Bytes. Of the 64 KiB of sm_75 and the 100 KiB of sm_86 and sm_89 more than this leaves room for 1 and 3 blocks; a
block may have 48 KiB without asking."""


def detect(source: CudaSource) -> Iterator[Sight]:
    """One sight for a kernel."""
    for kernel in source.kernels:
        arrays = [one for one in kernel.arrays if one.space is Space.SHARED and one.bytes]
        total = sum(one.bytes or 0 for one in arrays)
        if total > LARGE:
            largest = max(arrays, key=lambda one: one.bytes or 0)
            said = f"{total:,} bytes of shared memory a block, `{largest.name}` the largest"
            yield Sight(kernel.name, largest.line, said)


DETECTOR = CudaDetector("large_static_shared_memory", detect)
