"""Detect a barrier of the whole block that some threads skip: the others wait forever, or continue with half of the
data.

Certain if the condition, or a loop's iteration count, depends on `threadIdx` by arithmetic alone. Code after a
`continue` or `break` depends on its condition too. Silent after an early `return`: a barrier does not wait for threads
that have ended. Silent if loaded data decides, since it may be the same for all threads. Silent if the other arm has a
barrier too, or the launched blocks are no wider than the limit.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence, find_launches
from frx_graph.evidence.cuda.source import BarrierKind, Condition, CudaSource, Kernel


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per barrier."""
    for kernel in source.kernels:
        blocks = [one for one in kernel.barriers if one.kind is BarrierKind.BLOCK]
        waiting = {arm for one in blocks for arm in one.step.arms}
        for barrier in blocks:
            # The other arm has a barrier too: the hardware counts threads, not the places where they wait.
            if any((branch, 1 - arm) in waiting for branch, arm in barrier.step.arms):
                continue
            for one in barrier.step.conditions:
                if one.thread and not one.data and not one.early and not _holds_for_block(source, kernel, one):
                    said = f"`{barrier.text}` is below `{one.text}`, which differs between threads of a block"
                    yield Occurrence(kernel.name, barrier.step.line, said)
                    break


def _holds_for_block(source: CudaSource, kernel: Kernel, condition: Condition) -> bool:
    """Return True for `threadIdx.x < 256` if the file launches no wider blocks."""
    widths = [launch.block.sizes[0] for launch in find_launches(source, kernel)]
    return bool(widths) and all(
        width is not None and condition.width is not None and width <= condition.width for width in widths
    )
