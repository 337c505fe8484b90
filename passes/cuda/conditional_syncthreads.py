"""A barrier of the whole block stands where not all threads of the block come by: they wait for each other forever, or
go on with half of the data.

Certain where the condition, or how often a loop goes around, depends on `threadIdx` by arithmetic alone. Silent behind
an early `return`: a barrier does not wait for threads that have ended. Silent where loaded data decides, which may be
the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.evidence.cuda.source import BarrierKind, CudaSource
from frx_graph.passes.cuda.finding import CudaDetector, Sight


def detect(source: CudaSource) -> Iterator[Sight]:
    """One sight for a barrier."""
    for kernel in source.kernels:
        for barrier in kernel.barriers:
            if barrier.kind is not BarrierKind.BLOCK:
                continue
            split = next(
                (one for one in barrier.step.conditions if one.thread and not one.data and not one.early), None
            )
            if split is not None:
                said = f"`{barrier.text}` stands below `{split.text}`, which differs between threads of a block"
                yield Sight(kernel.name, barrier.step.line, said)


DETECTOR = CudaDetector("conditional_syncthreads", detect)
