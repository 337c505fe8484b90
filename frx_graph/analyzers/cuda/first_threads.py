"""Try the first threads of a block to find out if one reads data that another has written.

Sizes from a launch or build are assumed to be large. Conditions that some sizes fulfil are assumed to hold. If the
block size is unknown, two threads must meet in several sizes.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from frx_graph.analyzers.cuda.windows import ParameterWindows
from frx_graph.evidence.cuda.concrete import (
    OPPOSITE,
    Test,
    TestGroup,
    Threads,
    Truth,
    apply_and,
    apply_or,
    expand_threads,
)
from frx_graph.evidence.cuda.source import Access, Condition, Kernel, Launch, Loop, Use
from frx_graph.evidence.cuda.values import WARP

_MOST_THREADS = 256
"""Threads to try in a block of known size: eight warps, as most launches have."""
_LINES = (64, 256)
_WIDEST = 1024
_PLANES = ((8, 8), (16, 16), (32, 32))
"""Blocks to try for unknown sizes; their first 64 threads, or 8 by 8."""
_MOST_TRIED = 32_000
"""Limit on threads times accesses in a kernel; real ones need a tenth."""
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
    windows: ParameterWindows = field(init=False)
    _sizes: Sequence[_TriedBlock] = field(init=False, default=())
    _seen: dict[tuple[int, frozenset[str], int], Sequence[int | None]] = field(init=False, default_factory=dict)
    _by_element: dict[tuple[int, frozenset[str], int, int], Mapping[int, set[int]]] = field(
        init=False, default_factory=dict
    )
    _tried: dict[tuple[frozenset[str], int], _Assumptions] = field(init=False, default_factory=dict)
    _left: int = field(init=False, default=_MOST_TRIED)

    def __post_init__(self) -> None:
        self.windows = ParameterWindows(self.kernel)

    def can_threads_meet(
        self, write: Access, read: Access, written: Collection[Access], loop: Loop | None
    ) -> bool | None:
        """Return True if a thread reads data that another thread has written; for a `loop`, in the iteration before.
        Returns None if the elements are unknown."""
        wide = (write.element_bytes, read.element_bytes)
        if write.element != read.element and None in wide:
            return None
        if _is_contradiction(write, read):
            return False
        shared = set(write.step.loops)
        inner = frozenset(self._name_loop(number) for number in read.step.loops if number not in shared)
        outer = frozenset({self._name_loop(loop.number)} if loop is not None else ())
        again = frozenset(self._name_loop(number) for number in write.step.loops if number not in read.step.loops)
        found: bool | None = None
        for late, wrote in dict.fromkeys(((outer, _EARLY), (outer | inner, _EARLY), (outer, again))):
            met = [
                self._can_threads_meet_in(write, wrote, read, late, written, block)
                for block in range(len(self._blocks))
            ]
            if all(met):
                return True
            if None not in met:
                found = False
        return found

    def _can_threads_meet_in(
        self,
        write: Access,
        again: frozenset[str],
        read: Access,
        late: frozenset[str],
        written: Collection[Access],
        block: int,
    ) -> bool | None:
        # Later additions by other threads also belong to another thread.
        atomic = Use.ATOMIC in (write.use, read.use)
        unit = min(write.element_bytes or 1, read.element_bytes or 1) if write.element != read.element else 0
        at = self._list_places(read, late, block)
        if not at or not self._list_places(write, again, block):
            return None
        writers = self._index_writers(write, again, block, unit)
        met = [
            thread
            for thread, element in _iterate_elements(at, read, unit)
            if element in writers and (thread not in writers[element] or (atomic and len(writers[element]) > 1))
        ]
        if atomic:
            return bool(met)
        for one in written if met else ():
            if one.element == read.element:
                own = self._list_places(one, _EARLY, block)
                met = [thread for thread in met if not own or own[thread] != at[thread]]
        return bool(met)

    def _index_writers(self, write: Access, late: frozenset[str], block: int, unit: int) -> Mapping[int, set[int]]:
        """Return the threads that write each element."""
        key = (write.step.order, late, block, unit)
        if key not in self._by_element:
            found = self._by_element[key] = dict[int, set[int]]()
            for thread, element in _iterate_elements(self._list_places(write, late, block), write, unit):
                found.setdefault(element, set()).add(thread)
        return self._by_element[key]

    def _list_places(self, access: Access, late: frozenset[str], block: int) -> Sequence[int | None]:
        """Return the element of each thread, None for threads that do not reach it; nothing if unknown."""
        key = (access.step.order, late, block)
        if key not in self._seen:
            size = self._blocks[block].columns * self._blocks[block].rows
            self._left -= size
            self._seen[key] = () if self._left < 0 else self._evaluate_places(access, late, block)
        return self._seen[key]

    @property
    def _blocks(self) -> Sequence[_TriedBlock]:
        # Most kernels never need this.
        if not self._sizes:
            self._sizes = _choose_blocks(self.kernel, self.launches)
        return self._sizes

    def _evaluate_places(self, access: Access, late: frozenset[str], block: int) -> Sequence[int | None]:
        worlds = self._get_worlds(late, block)
        size = self._blocks[block].columns * self._blocks[block].rows
        worth = expand_threads(worlds.given.evaluate(access.offset), size)
        if all(one is None for one in worth[: _UNTOLD + 1]):
            return ()
        goes: Truth = True
        for condition in access.step.conditions:
            if condition.tests is not None and goes is not False:
                goes = apply_and(goes, worlds.may_hold(condition))
        return [
            place if comes is not False else None
            for place, comes in zip(worth, expand_threads(goes, size), strict=True)
        ]

    def _get_worlds(self, late: frozenset[str], block: int) -> _Assumptions:
        if (late, block) not in self._tried:
            self._tried[late, block] = _Assumptions.from_kernel(self.kernel, late, self._blocks[block])
        return self._tried[late, block]

    def _name_loop(self, number: int) -> str:
        return f"loop:{self.kernel.loops[number].step.line}" if number in self.kernel.loops else ""


@dataclass(slots=True)
class _Assumptions:
    """The first threads of a block in two worlds of large launch sizes, and with unknown places."""

    given: Threads
    otherwise: Threads
    strict: Threads
    _known: dict[int, Truth] = field(default_factory=dict)
    """Caches by identity of a condition, which all events below it share."""

    @staticmethod
    def from_kernel(kernel: Kernel, late: frozenset[str], block: _TriedBlock) -> _Assumptions:
        threads = range(block.columns * block.rows)
        place = {
            "threadIdx.x": tuple(thread % block.columns for thread in threads),
            "threadIdx.y": tuple(thread // block.columns for thread in threads) if block.rows > 1 else 0,
            "threadIdx.z": 0,
            "blockDim.x": block.width,
            "blockDim.y": block.height,
            "blockDim.z": 1,
        }
        given, otherwise, strict = (
            Threads(place, kernel.made, kernel.turns, late, given)
            for given in (_choose_large, _choose_mirrored, _choose_none)
        )
        return _Assumptions(given, otherwise, strict)

    def may_hold(self, condition: Condition) -> Truth:
        """Return False for threads that the condition excludes. Conditions that differ between threads hold if they
        hold in one of two worlds."""
        known = self._known
        if id(condition) not in known:
            tests = condition.tests
            assert tests is not None
            known[id(condition)] = self._holds_in_one(tests) if condition.varies & _PLACE else self.strict.check(tests)
        return known[id(condition)]

    def _holds_in_one(self, tests: Test | TestGroup) -> Truth:
        if isinstance(tests, Test):
            return apply_or(self.given.check(tests), self.otherwise.check(tests))
        together = apply_and if tests.all else apply_or
        return functools.reduce(together, map(self._holds_in_one, tests.tests))


def _choose_blocks(kernel: Kernel, launches: Sequence[Launch]) -> Sequence[_TriedBlock]:
    plane = any("threadIdx.y" in name for access in kernel.accesses for name in access.offset.iterate_symbols())
    sizes = {(launch.block.sizes[0], launch.block.sizes[1]) for launch in launches}
    ((width, height),) = sizes if len(sizes) == 1 else ((None, None),)
    if width and height:
        columns = min(width, WARP if plane and height > 1 else _MOST_THREADS)
        rows = min(height, _MOST_THREADS // columns) if plane else 1
        return [_TriedBlock(width, height, columns, rows)]
    if plane:
        return [_TriedBlock(*size, 8, 8) for size in _PLANES]
    if width:
        return [_TriedBlock(width, 1, min(width, _MOST_THREADS), 1)]
    # `threadIdx.x < 512` matters only if a block has more threads.
    limits = {one.width or 0 for access in kernel.accesses for one in access.step.conditions}
    wide = min(_WIDEST, 2 * max(limits, default=0))
    return [_TriedBlock(size, 1, max(_LINES[0], wide), 1) for size in sorted({max(size, wide) for size in _LINES})]


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
