"""Find out if a loop over a window leads a thread to its neighbours' elements, by trying a few widths."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from frx_graph.analyzers.cuda.first_threads import FirstThreads
from frx_graph.evidence.cuda.concrete import SymbolOperation, Test, Threads
from frx_graph.evidence.cuda.polynomial import Polynomial
from frx_graph.evidence.cuda.source import Access, Kernel
from frx_graph.evidence.cuda.values import WARP

_WIDTHS = (2, 3, 5, 1_000)
"""Widths to try; a result that is equal for all of them counts as independent of the width."""
_BLOCK = 64
"""Threads of a block along x and y."""
_SIZES = frozenset(["blockDim.x", "blockDim.y"])
_MOST_LOOPS = 2
"""Limit on loops around a window; each multiplies the trials: a pair of accesses takes 324 at most."""


def leads_to_neighbours(threads: FirstThreads, write: Access, read: Access, apart: Polynomial) -> bool:
    """Return True if a loop leads from a thread's own element to its neighbours', for any width of the window. The code
    writes `x + r` and reads `x + j`, with `j` up to `2 * r`. `apart` is their distance."""
    kernel = threads.kernel
    own = [kernel.loops[one] for one in read.step.loops if one not in write.step.loops and one in kernel.loops]
    names = set(apart.iterate_symbols())
    loops = {f"loop:{one.step.line}": one.condition for one in own if f"loop:{one.step.line}" in names}
    tests = [one.tests for one in loops.values() if one is not None and isinstance(one.tests, Test)]
    if not 0 < len(tests) == len(loops) <= _MOST_LOOPS:
        return False
    # The loops' bounds must give the distance: nothing relates two parameters.
    asked = {symbol for one in tests for symbol in _find_parameters(kernel, one.difference)}
    far = _find_parameters(kernel, apart)
    if None in asked or not far or not far - _SIZES <= asked:
        return False

    def are_neighbours(turns: Sequence[int], width: int) -> bool:
        place = {**dict(zip(loops, turns, strict=True)), **dict.fromkeys(_SIZES, _BLOCK)}
        thread = Threads(place, kernel.made, {}, frozenset(), lambda one: width if one.isidentifier() else None)
        worth = thread.evaluate(apart)
        near = isinstance(worth, int) and 0 < abs(worth) < WARP
        return near and all(thread.check(one) is True for one in tests)

    return threads.spend(len(_WIDTHS) * 9 ** len(loops)) and all(
        any(are_neighbours(turns, width) for turns in itertools.product(_choose_turns(width), repeat=len(loops)))
        for width in _WIDTHS
    )


def _find_parameters(kernel: Kernel, value: Polynomial) -> set[str | None]:
    """Return the parameters in a value, without loop counters; None represents any other symbol."""
    found = set[str | None]()
    waiting = list(value.iterate_symbols())
    while waiting:
        symbol = waiting.pop()
        made = kernel.made.get(symbol)
        if isinstance(made, SymbolOperation):
            waiting += [*made.one.iterate_symbols(), *made.other.iterate_symbols()]
        elif symbol.count(":") != 1:
            found.add(symbol if symbol.isidentifier() or symbol in _SIZES else None)
    return found


def _choose_turns(width: int) -> set[int]:
    """Return iterations to try for a window of this width: its ends and its middle."""
    middles = (width, width // 2)
    return {0, 1, *(one + near for one in middles for near in (-1, 0, 1)), 2 * width}
