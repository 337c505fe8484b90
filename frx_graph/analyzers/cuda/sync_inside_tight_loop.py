"""Detect a loop with next to no work between two barriers of the whole block.

Tree reductions and scans in shared memory are written like this: in each iteration all warps wait, for one addition.
Certain for an innermost loop with a barrier of the block in each iteration, no global memory, and at most 4 accesses of
shared memory per barrier. Loops over tiles load from global memory, and do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frx_graph.analyzers.cuda.finding import Occurrence, group_by_loop
from frx_graph.evidence.cuda.source import Access, Barrier, BarrierKind, Call, CudaSource, Event, Kernel, Loop, Space

FEW = 4
"""Limit on accesses: `a[i] += a[i + s]` has 3, a step of a scan 4."""

MOST = 2
"""Limit on barriers per iteration: one after the read, one after the write. With more it is another algorithm."""


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per loop."""
    for kernel in source.kernels:
        inside = group_by_loop(kernel.events)
        for loop in kernel.loops.values():
            if loop.innermost:
                yield from _check_loop(kernel, loop, inside.get(loop.number, ()))


def _check_loop(kernel: Kernel, loop: Loop, inside: Sequence[Event]) -> Iterator[Occurrence]:
    barriers = [one for one in inside if isinstance(one, Barrier) and one.kind is BarrierKind.BLOCK]
    accesses = [one for one in inside if isinstance(one, Access)]
    shared = [one for one in accesses if one.space is Space.SHARED]
    little = 0 < len(shared) == len(accesses) <= FEW * len(barriers)
    if not 0 < len(barriers) <= MOST or not little or any(isinstance(one, Call) and not one.pure for one in inside):
        return
    times = "once" if len(barriers) == 1 else f"{len(barriers)} times"
    said = (
        f"the loop while `{loop.text}` waits for the whole block {times} a turn, "
        f"for {len(shared)} accesses of shared memory"
    )
    yield Occurrence(kernel.name, barriers[0].step.line, said)
