"""Detect a barrier of the whole block that nothing depends on.

Certain in three cases. It is the last action of a kernel, or it follows another barrier without an access or a call
between them. Or the kernel has no shared memory, reads no array that it writes, and calls no unknown function.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.evidence.cuda.source import (
    Access,
    Barrier,
    BarrierKind,
    Call,
    CudaSource,
    Event,
    Kernel,
    Loop,
    Space,
    Use,
)


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
            if _is_block(one) and _is_block(other) and _is_same_place(one, other) and one.step.line != other.step.line:
                said = f"nothing is read or written since the barrier in line {one.step.line}"
                yield Occurrence(kernel.name, other.step.line, said)
        last = events[-1] if events else None
        if isinstance(last, Barrier) and _is_block(last) and not last.step.loops and last.step.through is None:
            yield Occurrence(kernel.name, last.step.line, "nothing comes behind it: the kernel ends here")


def _is_block(event: Event) -> bool:
    return isinstance(event, Barrier) and event.kind is BarrierKind.BLOCK and event.text.startswith("__syncthreads()")


def _is_same_place(one: Event, other: Event) -> bool:
    return (
        one.step.loops == other.step.loops
        and one.step.arms == other.step.arms
        and (one.step.through is None and other.step.through is None)
    )


def _shares_nothing(kernel: Kernel) -> bool:
    if any(array.space is Space.SHARED for array in kernel.arrays):
        return False
    if any(isinstance(event, Call) and not event.pure for event in kernel.events):
        return False
    accesses = [event for event in kernel.events if isinstance(event, Access)]
    if not accesses or any(one.space not in (Space.GLOBAL, Space.CONSTANT) for one in accesses):
        return False
    written = {one.base for one in accesses if one.use is not Use.READ}
    read = {one.base for one in accesses if one.use is not Use.WRITE}
    return not written & read
