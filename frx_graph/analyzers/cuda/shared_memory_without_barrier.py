"""Detect a thread that reads shared memory that another has written, or overwrites what another reads, without a wait
in between.

Certain only if the two places are known to be different threads'. One such case is the same array at offsets that
differ by less than a warp is wide, by a loop counter, or by their dependence on the thread's place (a row and a
column). Others are a write by one thread alone, atomic updates by other threads, and two of the first threads of a
block that meet in a trial. In a loop, the next iteration reads the writes of the last one, or overwrites what that one
reads.

Silent if anything in between may be a barrier: any barrier of any group, an unknown function or macro, or inline
assembly that is not known to be plain. Silent if a thread can reach only one of the two.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.cuda.finding import Occurrence, find_launches, group_by_loop
from frx_graph.analyzers.cuda.first_threads import FirstThreads
from frx_graph.analyzers.cuda.launch_advice import MOST_THREADS
from frx_graph.analyzers.cuda.windows import leads_to_neighbours
from frx_graph.evidence.cuda.polynomial import Polynomial, make_constant, make_symbol
from frx_graph.evidence.cuda.source import (
    Access,
    Barrier,
    Call,
    CudaSource,
    Event,
    Kernel,
    Loop,
    Space,
    Step,
    StrideKind,
    Use,
    WarpOperation,
)
from frx_graph.evidence.cuda.values import WARP

_MOST_PENDING = 256
"""Writes of one array between two barriers that a read is compared with: the last ones."""
_MAY_WAIT = re.compile(
    r"sync|wait|barrier|reduce|scan|sort|block|warp|group|cub|exchange|transpose|shuffle|tile", re.IGNORECASE
)
"""Parts of names of functions in which threads may wait for each other."""
_READS, _WRITES, _ATOMICS = (frozenset([use]) for use in (Use.READ, Use.WRITE, Use.ATOMIC))
_LAST = make_symbol("blockDim.x") - make_constant(1)
"""The place of a block's last thread."""


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per array of a kernel: the first read, or the first write that comes too early."""
    for kernel in source.kernels:
        for race in find_races(source, kernel, volatile=False):
            write, read = race.write, race.read
            if race.overwrites:
                place = source.describe_line(read.step.line)
                said = (
                    f"`{write.text}` is written without a barrier after {place}, where other threads read `{read.text}`"
                )
                yield Occurrence(kernel.name, write.step.line, said, write)
                continue
            place = source.describe_line(write.step.line)
            said = f"`{read.text}` is read without a barrier after {place}, where other threads write `{write.text}`"
            yield Occurrence(kernel.name, read.step.line, said, read)


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses of one element without a wait in between; `overwrites`: the write comes after the read."""

    write: Access
    read: Access
    overwrites: bool


def find_races(source: CudaSource, kernel: Kernel, *, volatile: bool) -> Iterator[Race]:
    """Yield races with writes that are `volatile` or not, once for each array; loops run twice. Writes that come too
    early are not searched among volatile ones, which the threads of a warp use in step."""
    events = _select_events(kernel, volatile)
    if not events:
        return
    done: set[str] = set()
    waiting = frozenset(number for one in events if not isinstance(one, Access) for number in one.step.loops)
    threads = FirstThreads(kernel, find_launches(source, kernel), waiting)
    inside = group_by_loop(events)
    for overwrites in (False,) if volatile else (False, True):
        yield from _find_races_between((), events, done, None, threads, volatile, overwrites)
        for loop in kernel.loops.values():
            if body := inside.get(loop.number):
                yield from _find_races_between(body, body, done, loop, threads, volatile, overwrites)


def _select_events(kernel: Kernel, volatile: bool) -> Sequence[Event]:
    """Return accesses of arrays that are both written and read, and the places where threads wait. Returns nothing
    without such arrays."""
    # Global memory can also be `volatile` for other threads.
    shared = [
        one for one in kernel.accesses if one.space is Space.SHARED or (one.volatile and one.space is Space.GLOBAL)
    ]
    written = {one.base for one in shared if one.use is not Use.READ and one.volatile is volatile}
    both = {one.base for one in shared if one.use is not Use.WRITE and one.base in written}
    asked = {one.step.order for one in shared if one.base in both}
    return [
        event
        for event in kernel.events
        if asked and (event.step.order in asked if isinstance(event, Access) else _is_waited_at(event))
    ]


def _find_races_between(
    before: Sequence[Event],
    events: Sequence[Event],
    done: set[str],
    loop: Loop | None,
    threads: FirstThreads,
    volatile: bool,
    overwrites: bool,
) -> Iterator[Race]:
    """Yield accesses among `events` of elements that were accessed `before`, in the last iteration of `loop`. Without
    one, both are among `events`. The second access is a read, or with `overwrites` a write."""
    pending: dict[str, deque[Access]] = defaultdict(lambda: deque(maxlen=_MOST_PENDING))
    # What is updated atomically may be written at any time, as in a queue or a lock.
    firsts, seconds = (_READS, _WRITES) if overwrites else (_WRITES | _ATOMICS, _READS | _ATOMICS)
    for late, event in [*((False, event) for event in before), *((True, event) for event in events)]:
        if not isinstance(event, Access):
            # Those who have waited have been waited for, except in the other arm of a branch.
            for base, accesses in pending.items():
                stay = (one for one in accesses if not _is_on_one_path(one.step, event.step))
                pending[base] = deque(stay, maxlen=_MOST_PENDING)
            continue
        earlier = pending[event.base]
        for one in earlier if late and event.use in seconds else ():
            write, read = (event, one) if overwrites else (one, event)
            if write.volatile is not volatile or write.base in done or (overwrites and read.volatile):
                continue
            # A thread may overwrite the element that it reads itself.
            pair = write, read, [event] if overwrites else earlier, loop, threads, overwrites
            if _reads_others(*pair) or _is_race_when_tried(*pair):
                done.add(write.base)
                yield Race(write, read, overwrites)
        if event.use in firsts and not (late and before):
            earlier.append(event)


def _is_waited_at(event: Event) -> bool:
    """Return True for barriers, and for calls that may have one. Code that only some threads of a warp reach cannot
    have one for all; what whole warps reach may be a barrier of the warp. In a loop up to a number from the launch,
    which may end within a warp, functions wait if their name says so: programs round such numbers up for them."""
    if isinstance(event, Call):
        below = [one for one in event.step.conditions if not one.early and not one.data]
        split = any(one.lane for one in below) or (
            bool(event.step.loops) and any(one.ragged for one in below) and _MAY_WAIT.search(event.name) is None
        )
        return not event.pure and not split
    return isinstance(event, WarpOperation) or (isinstance(event, Barrier) and not event.alone)


def _is_race_when_tried(
    write: Access,
    read: Access,
    written: Collection[Access],
    loop: Loop | None,
    threads: FirstThreads,
    overwrites: bool,
) -> bool:
    """Return True if threads meet in places that no stride describes."""
    if write.volatile or write.use is read.use or "data" in write.varies | read.varies:
        return False
    if Use.ATOMIC in (write.use, read.use) and (loop is not None or any(_is_polling(one) for one in (write, read))):
        return False
    if _is_excluded(write.step, read.step):
        return False
    return threads.can_threads_meet(write, read, written, loop, overwrites=overwrites) is True


def _reads_others(
    write: Access,
    read: Access,
    written: Collection[Access],
    loop: Loop | None,
    threads: FirstThreads,
    overwrites: bool,
) -> bool:
    """Return True if a thread reads an element that another has written, or with `overwrites` writes later, for a
    `loop` in the iteration before."""

    def may_meet() -> bool:
        return threads.can_threads_meet(write, read, written, loop, overwrites=overwrites) is not False

    # Offsets in elements of two sizes cannot be compared.
    alike = write.element == read.element or write.element_bytes == read.element_bytes is not None
    if not _is_on_one_path(write.step, read.step):
        return False
    if not alike:
        # Both begin where the array does.
        together = write.offset == make_symbol("threadIdx.x") and not read.offset.terms
        all_write = not any("x" in one.varies for one in write.step.conditions)
        return overwrites and together and all_write and not read.step.single
    if Use.ATOMIC in (write.use, read.use):
        return loop is None and write.use is not read.use and _is_around_atomic(write, read)
    if "data" in write.varies | read.varies:
        # Each thread has written its own element, and reads one that only data choose.
        own = "data" not in write.varies and bool(write.stride.elements) and not write.step.single
        chosen = "data" in read.varies and all(name and all("#" in one for one in name) for name in read.offset.terms)
        return own and chosen and not read.step.single and _is_by_place(write.offset)
    apart = read.offset - write.offset
    if apart.constant == 0 and _depends_on_data(write) and not (overwrites or _depends_on_data(read)):
        ways = set(read.step.conditions)
        written_too = any(one.offset == read.offset and ways.issuperset(one.step.conditions) for one in written)
        return not written_too and write.stride.kind is read.stride.kind is StrideKind.BROADCAST
    if write.step.single:
        if read.step.single:
            return False
        if apart.constant == 0:
            # One thread has written, the others have not.
            alone = write.stride.kind in (StrideKind.BROADCAST, StrideKind.COALESCED)
            return alone and read.stride.kind is StrideKind.BROADCAST
        # One thread of each warp, or one for all: other places belong to other threads.
        several = "x" in write.varies or any(name.startswith("loop:") for name in write.offset.iterate_symbols())
        return several and write.stride.kind is StrideKind.BROADCAST and _is_by_place(apart)
    step, reads = write.stride.elements, read.stride.elements
    if not step or any(one.offset == read.offset and not one.step.single for one in written):
        return False
    if read.step.single:
        known = reads == 0 and "loop:" in str(read.offset) and _is_by_place(apart)
        return known and may_meet()
    if apart.constant is not None:
        # Places between a thread's element and its neighbour's may be its own too; farther away than a warp is wide,
        # there may be no thread.
        if apart.constant == 0 or apart.constant % step or abs(apart.constant // step) >= WARP:
            return False
        # In `if (i < 4) x[i] += x[i + 4]` no thread reads what another writes.
        few = any("x" in one.varies for one in (*write.step.conditions, *read.step.conditions))
        return not (few or threads.launches) or may_meet()
    if reads is None:
        return False
    if reads != step:
        # Below a condition on the place, readers need not be writers, nor writers readers.
        if any("x" in one.varies and not one.ragged for one in write.step.conditions):
            return False
        # Not all of a block's threads are tried, and seldom the last one.
        return (reads == 0 and read.offset == _LAST) or (_is_by_place(apart) and may_meet())
    bordered = all(one.ragged or "x" not in one.varies for one in (*write.step.conditions, *read.step.conditions))
    if loop is None and abs(step) == 1 and bordered and leads_to_neighbours(threads, write, read, apart):
        return True
    ((name, times), *more) = apart.terms.items()
    if abs(step) != 1 or more or len(name) != 1 or not name[0].startswith("loop:") or abs(times) >= WARP:
        return False
    # In `if (i < s) x[i] += x[i + s]` no thread reads what another writes before `s` changes.
    if loop is not None:
        return name[0].startswith(f"loop:{loop.step.line}:")
    return write.step.loops != read.step.loops


def _is_polling(access: Access) -> bool:
    """Return True for an element that data-dependent code sets or reads: with atomics around it, that is a queue or a
    lock."""
    return access.use is not Use.ATOMIC and any(one.data for one in access.step.conditions)


def _is_around_atomic(write: Access, read: Access) -> bool:
    """Return True if an atomic update and a plain access need a barrier between them."""
    atomic, plain = (read, write) if read.use is Use.ATOMIC else (write, read)
    if "data" in plain.varies:
        return False
    if (read.offset - write.offset).constant == 0:
        return atomic.stride.kind is StrideKind.BROADCAST and not atomic.step.single
    # An element chosen by data belongs to another thread.
    return (
        "data" in atomic.varies
        and bool(plain.varies & {"x", "y"})
        and not plain.step.single
        and _is_by_place(plain.offset)
    )


def _is_by_place(apart: Polynomial) -> bool:
    """Return True for a distance made of threads' places and counters alone. In memory that several arrays share,
    another distance leads from one array to another."""
    near = abs(apart.terms.get((), 0)) < MOST_THREADS
    return near and all(_is_place(name) for name in apart.terms if name)


def _is_place(product: Sequence[str]) -> bool:
    """Return True for a thread's place or a counter, alone or times the size of a block: `k * blockDim.x`."""
    # A pointer that a loop changes leads from one array to another.
    own = [name for name in product if "threadIdx." in name or (name.startswith("loop:") and ":*" not in name)]
    return bool(own) and all(name in own or name.startswith("blockDim.") for name in product)


def _depends_on_data(access: Access) -> bool:
    """Return True for an action that depends on data that the thread loaded for itself: `if (x[i] > 0) found = 1`."""
    return any(one.data and "x" in one.varies and "z" not in one.varies for one in access.step.conditions)


def _is_on_one_path(one: Step, other: Step) -> bool:
    """Return False for two arms of the same branch, and for two remainders, which may exclude each other."""
    if _is_excluded(one, other):
        return False
    first, second = set(one.conditions), set(other.conditions)
    return not (any(c.modulo for c in first - second) and any(c.modulo for c in second - first))


def _is_excluded(one: Step, other: Step) -> bool:
    """Return True for two arms of the same branch."""
    arms = dict(one.arms)
    return any(arms.get(branch, arm) != arm for branch, arm in other.arms)
