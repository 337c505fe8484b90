"""A thread reads from shared memory what another has written, and nothing makes it wait.

Certain only where the two places are known to be different threads': the same array, at offsets that differ by less
than a warp is wide, or that one thread alone has written. Silent as soon as anything stands between that may be a
barrier: any barrier of any group, a function or macro that is not known, inline assembly; and where only one of the two
can be on a thread's way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from frx_graph.evidence.cuda.source import (
    Access,
    Barrier,
    Call,
    CudaSource,
    Event,
    Space,
    Step,
    StrideKind,
    Use,
    WarpOperation,
)
from frx_graph.passes.cuda.finding import CudaDetector, Sight

_MOST_PENDING = 256
"""Writes of one array between two barriers that a read is compared with: the last ones."""
WARP = 32
"""Threads that any block may be taken to have."""


def detect(source: CudaSource) -> Iterator[Sight]:
    """One sight for an array of a kernel: the first read."""
    for kernel in source.kernels:
        for write, read in races(kernel.events):
            if not write.volatile:
                said = (
                    f"`{read.text}` is read without a barrier after line {write.step.line}, where other threads write "
                    f"`{write.text}`"
                )
                yield Sight(kernel.name, read.step.line, said, read)


def races(events: Sequence[Event]) -> Iterator[tuple[Access, Access]]:
    """The write and the read, once for each array."""
    pending: dict[str, deque[Access]] = {}
    done: set[str] = set()
    for event in events:
        if isinstance(event, (Barrier, WarpOperation)) or (isinstance(event, Call) and not event.pure):
            pending.clear()
        elif isinstance(event, Access) and event.space is Space.SHARED and event.base not in done:
            if event.use is Use.WRITE:
                pending.setdefault(event.base, deque(maxlen=_MOST_PENDING)).append(event)
            elif event.use is Use.READ:
                write = next((one for one in pending.get(event.base, ()) if _others(one, event)), None)
                if write is not None:
                    done.add(event.base)
                    yield write, event


def _others(write: Access, read: Access) -> bool:
    """True if a thread reads here what another has written there."""
    if not _on_one_way(write.step, read.step) or "data" in write.varies | read.varies:
        return False
    if _only_single(write) and not read.step.single:
        # Whoever has written, the others have not.
        return (read.offset - write.offset).constant == 0 and read.stride.kind is StrideKind.BROADCAST
    if write.step.single or read.step.single:
        return False
    apart, stride = (read.offset - write.offset).constant, write.stride.elements
    if not apart or not stride or apart % stride:
        # What lies between a thread's element and its neighbour's may be its own too.
        return False
    # Farther away than a warp is wide, there may be no thread.
    return abs(apart // stride) < WARP


def _only_single(write: Access) -> bool:
    return write.step.single and write.stride.kind in (StrideKind.BROADCAST, StrideKind.COALESCED)


def _on_one_way(one: Step, other: Step) -> bool:
    """False for two arms of the same branch."""
    arms = dict(one.arms)
    return all(arms.get(branch, arm) == arm for branch, arm in other.arms)


DETECTOR = CudaDetector("shared_memory_without_barrier", detect)
