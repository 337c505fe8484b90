"""Threads of a warp are taken to run in step, which they need not since compute capability 7.0.

Certain of three: shuffles and votes without a mask (`__shfl_down`), which are gone there; those with the mask of a
whole warp below a condition that holds for a part of it; and shared memory that is `volatile` so that a warp sees the
writes of its other threads, without `__syncwarp()` between the write and the read.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.evidence.cuda.source import CudaSource, WarpOperation
from frx_graph.passes.cuda.finding import CudaDetector, Sight
from frx_graph.passes.cuda.shared_memory_without_barrier import races


def detect(source: CudaSource) -> Iterator[Sight]:
    """One sight for a kernel and kind."""
    for kernel in source.kernels:
        operations = [event for event in kernel.events if isinstance(event, WarpOperation)]
        legacy = next((one for one in operations if one.mask is None), None)
        if legacy is not None:
            said = f"`{legacy.name}` has no mask: CUDA 9 has replaced it by `{legacy.name}_sync`"
            yield Sight(kernel.name, legacy.step.line, said)
        for one in operations:
            split = next((c for c in one.step.conditions if c.lane and not c.early and not c.data), None)
            if one.full and split is not None:
                said = f"`{one.name}` wants all lanes below `{split.text}`, which holds for a part of a warp"
                yield Sight(kernel.name, one.step.line, said)
                break
        for write, read in races(kernel.events):
            if write.volatile:
                said = (
                    f"`{read.text}` is read after other lanes write `{write.text}` (line {write.step.line}) without "
                    "`__syncwarp()`"
                )
                yield Sight(kernel.name, read.step.line, said, read)
                break


DETECTOR = CudaDetector("warp_level_sync_misuse", detect)
