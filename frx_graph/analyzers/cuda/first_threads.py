"""Try the first threads of a block to find out if one reads data that another has written.

Sizes from a launch or build are assumed to be large. Conditions that some sizes fulfil are assumed to hold. If the
block size is unknown, two threads must meet in several sizes.
"""

from __future__ import annotations

import functools
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from frx_graph.analyzers.cuda.launch_advice import MOST_THREADS
from frx_graph.evidence.cuda.concrete import (
    OPPOSITE,
    Test,
    TestGroup,
    Threads,
    Truth,
    Worth,
    apply_and,
    apply_or,
    expand_threads,
)
from frx_graph.evidence.cuda.source import Access, Condition, Kernel, Launch, Loop, Use
from frx_graph.evidence.cuda.values import WARP

_MOST_THREADS = 256
"""Threads to try in a block of known size: eight warps, as most launches have."""
_LINES = (64, 256)
_PLANES = ((8, 8), (16, 16), (32, 2), (32, 32))
"""Blocks to try for unknown sizes; their first 64 threads, or 8 by 8."""
_MOST_TRIED = 32_000
"""Limit on threads times accesses, and iterations of windows, in a kernel; real ones need a tenth."""
_LARGE = 1 << 16
_UNTOLD = 4
"""Threads at unknown places; the first may be before the first element."""
_PLACE = frozenset(["x", "y", "z"])
_EARLY = frozenset[str]()
"""Constant for no loop in its second iteration."""


@dataclass(frozen=True, slots=True)
class _TriedBlock:
    """The size of a block, and the numbers of threads to try along x and y."""

    width: int
    height: int
    columns: int
    rows: int


@dataclass(slots=True)
class FirstThreads:
    """The first threads of a kernel's blocks, as its file launches it."""

    kernel: Kernel
    launches: Sequence[Launch]
    waiting: frozenset[int] = frozenset()
    """Numbers of the loops in which threads wait for each other."""
    _blocks: Sequence[_TriedBlock] = ()
    _worlds: dict[tuple[frozenset[str], _TriedBlock], _World] = field(default_factory=dict)
    _left: int = _MOST_TRIED

    def spend(self, tries: int) -> bool:
        """Count tries in this kernel. Returns False beyond the limit."""
        self._left -= tries
        return self._left >= 0

    def can_threads_meet(
        self, write: Access, read: Access, written: Collection[Access], loop: Loop | None, *, overwrites: bool = False
    ) -> bool | None:
        """Return True if a thread reads data that another thread has written; for a `loop`, in the iteration before.
        With `overwrites`, the write comes after the read. Returns None if the elements are unknown."""
        if write.element != read.element and None in (write.element_bytes, read.element_bytes):
            return None
        if _is_contradiction(write, read):
            return False
        # Most kernels never need this.
        self._blocks = self._blocks or _choose_blocks(self.kernel, self.launches)
        outer = frozenset([f"loop:{loop.step.line}"] if loop is not None else ())
        earlier, later = (read, write) if overwrites else (write, read)
        # Before the second iteration of a loop, threads may have waited in its first.
        first, second = self._name_loops(earlier, later), self._name_loops(later, earlier, self.waiting)
        found: bool | None = None
        # The loops in their second iteration when the element is read, and when it is written.
        tried = ((outer, _EARLY), (outer | second, _EARLY), (outer, first))
        if overwrites:
            tried = ((_EARLY, outer), (first, outer), (_EARLY, outer | second))
        for late, wrote in dict.fromkeys(tried):
            met = [self._can_threads_meet_in(block, write, wrote, read, late, written) for block in self._blocks]
            if all(met):
                return True
            if None not in met:
                found = False
        return found

    def _can_threads_meet_in(
        self,
        block: _TriedBlock,
        write: Access,
        wrote: frozenset[str],
        read: Access,
        late: frozenset[str],
        written: Collection[Access],
    ) -> bool | None:
        # Later additions by other threads also belong to another thread.
        atomic = Use.ATOMIC in (write.use, read.use)
        unit = min(write.element_bytes or 1, read.element_bytes or 1) if write.element != read.element else 0
        at, writing = self._get_world(late, block).list_places(read), self._get_world(wrote, block)
        if not at or not writing.list_places(write):
            return None
        writers = writing.index_writers(write, unit)
        met = [
            thread
            for thread, element in _iterate_elements(at, read, unit)
            if element in writers and (thread not in writers[element] or (atomic and len(writers[element]) > 1))
        ]
        if met and not atomic:
            early = self._get_world(_EARLY, block)
            for one in written:
                if one.element == read.element and (own := early.list_places(one)):
                    met = [thread for thread in met if own[thread] != at[thread]]
        return bool(met)

    def _get_world(self, late: frozenset[str], block: _TriedBlock) -> _World:
        if (late, block) not in self._worlds:
            self._worlds[late, block] = _World(self, late, block)
        return self._worlds[late, block]

    def _name_loops(self, one: Access, other: Access, without: Collection[int] = ()) -> frozenset[str]:
        """Name the loops around one access that are not around the other, and not `without`."""
        alone = (number for number in one.step.loops if number not in other.step.loops and number not in without)
        loops = map(self.kernel.loops.get, alone)
        return frozenset(f"loop:{loop.step.line}" for loop in loops if loop is not None)


class _World:
    """The first threads of a block, with large launch sizes in two orders, and with unknown sizes. `late` are the loops
    in their second iteration."""

    def __init__(self, threads: FirstThreads, late: frozenset[str], block: _TriedBlock) -> None:
        self._threads = threads
        self._size = block.columns * block.rows
        place: dict[str, Worth] = {
            "threadIdx.x": tuple(thread % block.columns for thread in range(self._size)),
            "threadIdx.y": tuple(thread // block.columns for thread in range(self._size)) if block.rows > 1 else 0,
            "threadIdx.z": 0,
            "blockDim.x": block.width,
            "blockDim.y": block.height,
            "blockDim.z": 1,
        }
        self._given, self._otherwise, self._strict = (
            Threads(place, threads.kernel.made, threads.kernel.turns, late, given)
            for given in (_choose_large, _choose_mirrored, _choose_none)
        )
        # By order of an access, and by identity of a condition, which all events below it share.
        self._places: dict[int, Sequence[int | None]] = {}
        self._writers: dict[tuple[int, int], Mapping[int, set[int]]] = {}
        self._holding: dict[int, Truth] = {}

    def list_places(self, access: Access) -> Sequence[int | None]:
        """Return the element of each thread, None for threads that do not reach it; nothing if unknown."""
        key = access.step.order
        if key not in self._places:
            self._places[key] = self._evaluate_places(access) if self._threads.spend(self._size) else ()
        return self._places[key]

    def index_writers(self, write: Access, unit: int) -> Mapping[int, set[int]]:
        """Return the threads that write each element."""
        key = (write.step.order, unit)
        if key not in self._writers:
            found = self._writers[key] = defaultdict[int, set[int]](set)
            for thread, element in _iterate_elements(self.list_places(write), write, unit):
                found[element].add(thread)
        return self._writers[key]

    def _evaluate_places(self, access: Access) -> Sequence[int | None]:
        worth = expand_threads(self._given.evaluate(access.offset), self._size)
        if all(one is None for one in worth[: _UNTOLD + 1]):
            return ()
        goes: Truth = True
        for condition in access.step.conditions:
            if condition.tests is not None and goes is not False:
                goes = apply_and(goes, self._may_hold(condition, condition.tests))
        reached = expand_threads(goes, self._size)
        return [place if comes is not False else None for place, comes in zip(worth, reached, strict=True)]

    def _may_hold(self, condition: Condition, tests: Test | TestGroup) -> Truth:
        """Return False for threads that the condition excludes. Conditions that differ between threads hold if they
        hold with one of two orders of sizes."""
        known = self._holding
        if id(condition) not in known:
            known[id(condition)] = self._holds_in_one(tests) if condition.varies & _PLACE else self._strict.check(tests)
        return known[id(condition)]

    def _holds_in_one(self, tests: Test | TestGroup) -> Truth:
        if isinstance(tests, Test):
            return apply_or(self._given.check(tests), self._otherwise.check(tests))
        together = apply_and if tests.all else apply_or
        return functools.reduce(together, map(self._holds_in_one, tests.tests))


def _choose_blocks(kernel: Kernel, launches: Sequence[Launch]) -> Sequence[_TriedBlock]:
    plane = any("threadIdx.y" in name for access in kernel.accesses for name in access.offset.iterate_symbols())
    sizes = {launch.block.sizes[:2] for launch in launches}
    ((width, height),) = sizes if len(sizes) == 1 else ((None, None),)
    if all(launch.block.sizes[0] is None for launch in launches):
        width = _infer_size(kernel, "threadIdx.x")
        height = _infer_size(kernel, "threadIdx.y") if plane else 1
    elif not plane:
        height = height or 1
    if width and height:
        columns = min(width, WARP if plane and height > 1 else _MOST_THREADS)
        return [_TriedBlock(width, height, columns, min(height, _MOST_THREADS // columns) if plane else 1)]
    if plane:
        planes = {(width or one, height or other) for one, other in _PLANES}
        return [_TriedBlock(x, y, min(8, x), min(8, y)) for x, y in sorted(planes)]
    if width:
        return [_TriedBlock(width, 1, min(width, _MOST_THREADS), 1)]
    # `threadIdx.x < 512` matters only if a block has more threads.
    limits = {one.width or 0 for access in kernel.accesses for one in access.step.conditions}
    wide = min(MOST_THREADS, 2 * max(limits, default=0))
    return [_TriedBlock(size, 1, max(_LINES[0], wide), 1) for size in sorted({max(size, wide) for size in _LINES})]


def _infer_size(kernel: Kernel, place: str) -> int | None:
    """Return the size of a block, if the kernel moves on by that: `for (i = threadIdx.x; i < n; i += 64) a[i] = …`.
    Other numbers than whole warps along x are pitches of rows. Below a condition on the place, a part of the block may
    do it."""
    found: set[int] = set()
    for access in kernel.accesses:
        offset = access.offset
        if any(one.varies & _PLACE and not (one.early or one.ragged) for one in access.step.conditions):
            continue
        # Not in `threadIdx.x % 8`.
        if {one for one in offset.iterate_symbols() if place in one} != {place}:
            continue
        terms = offset.terms
        for name, times in terms.items():
            steps = [one for one in name if one.startswith("loop:")]
            if len(steps) != 1:
                continue
            beside = tuple(sorted(place if one == steps[0] else one for one in name))
            own = terms.get(beside)
            if own is not None and times % own == 0 and times // own > 1:
                found.add(times // own)
    size = found.pop() if len(found) == 1 else None
    whole = size is not None and size <= MOST_THREADS and (place != "threadIdx.x" or size % WARP == 0)
    return size if whole else None


def _is_contradiction(write: Access, read: Access) -> bool:
    """Return True if one event happens only when the other does not, for any launch."""
    known, asked = (
        [one.tests for one in access.step.conditions if isinstance(one.tests, Test) and not one.varies & _PLACE]
        for access in (write, read)
    )
    return any(Test(OPPOSITE[one.sign], one.difference) in known for one in asked)


def _choose_none(symbol: str) -> int | None:
    return 0 if symbol.startswith("blockIdx.") else None


def _choose_large(symbol: str) -> int | None:
    """Return a large number for a size from a launch or build."""
    if symbol.startswith("blockIdx."):
        return 0
    return None if "#" in symbol else _LARGE + zlib.crc32(symbol.encode()) % _LARGE


def _choose_mirrored(symbol: str) -> int | None:
    """Return another large number, in the reverse order of sizes."""
    large = _choose_large(symbol)
    return 3 * _LARGE - large if large else large


def _iterate_elements(places: Sequence[int | None], access: Access, unit: int) -> Iterator[tuple[int, int]]:
    """Yield threads and the elements that they access, in pieces of `unit` bytes; with 0, elements are alike."""
    if not unit:
        return ((thread, place) for thread, place in enumerate(places) if place is not None)
    size = access.element_bytes or unit
    return (
        (thread, piece)
        for thread, place in enumerate(places)
        if place is not None
        for piece in range(place * size // unit, (place * size + size - 1) // unit + 1)
    )
