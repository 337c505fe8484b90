"""Detect a barrier of the whole block that nothing depends on.

Certain in three cases. It is the last action of a kernel, or it follows another barrier without an access or a call
between them. Or the kernel has no shared memory, reads no array that it writes, and calls no unknown function.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.evidence.cuda.source import Barrier, BarrierKind, CudaSource, Event, Kernel, Loop, Space, Use


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per barrier."""
    for kernel in source.kernels:
        if not kernel.complete:
            continue
        events = [event for event in kernel.events if not isinstance(event, Loop)]
        blocks = [one for one in kernel.barriers if one.kind is BarrierKind.BLOCK and one.step.through is None]
        if blocks and _shares_nothing(kernel):
            said = "the threads of a block exchange nothing: no shared memory, no array both written and read"
            yield Occurrence(kernel.name, blocks[0].step.line, said)
            continue
        for one, other in pairwise(events):
            if not _is_block(one) or not _is_block(other) or one.step.line == other.step.line:
                continue
            if one.step.loops == other.step.loops and one.step.arms == other.step.arms:
                said = f"nothing is read or written since the barrier in {source.describe_line(one.step.line)}"
                yield Occurrence(kernel.name, other.step.line, said)
        if events and _is_block(events[-1]) and not events[-1].step.loops:
            yield Occurrence(kernel.name, events[-1].step.line, "nothing comes behind it: the kernel ends here")


def _is_block(event: Event) -> bool:
    """Return True for `__syncthreads()` in the kernel itself."""
    said = isinstance(event, Barrier) and event.kind is BarrierKind.BLOCK and event.text.startswith("__syncthreads()")
    return said and event.step.through is None


def _shares_nothing(kernel: Kernel) -> bool:
    if any(array.space is Space.SHARED for array in kernel.arrays) or any(not call.pure for call in kernel.calls):
        return False
    written = {one.base for one in kernel.accesses if one.use is not Use.READ}
    read = {one.base for one in kernel.accesses if one.use is not Use.WRITE}
    known = all(one.space in (Space.GLOBAL, Space.CONSTANT) for one in kernel.accesses)
    return bool(kernel.accesses) and known and not written & read
