"""Simulate bank conflicts thread by thread, for offsets without a constant stride: remainders, quotients and bits."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from frx_graph.evidence.cuda.concrete import Threads, Truth, Worth, apply_and, expand_threads
from frx_graph.evidence.cuda.polynomial import ZERO, Polynomial
from frx_graph.evidence.cuda.source import Condition
from frx_graph.evidence.cuda.values import WARP, Symbols, count_bank_turns, list_warp_widths, pick_agreed_turns

_PLACE = frozenset(["x", "y"])
_WORD = 4
_TILES = (16, 32)
_SURELY = 4
"""Turns of a conflict: rows of 16, padded by one, leave 2."""
_AT_ONCE = 128
"""Bytes that a warp, or a part of one, receives per turn."""


def simulate_bank_turns(
    symbols: Symbols,
    offset: Polynomial,
    element_bytes: int,
    conditions: Sequence[Condition],
    *,
    plane: bool,
    width: int | None,
) -> int | None:
    """Return the turns that the first warp of a block takes in the first iteration of all loops; None if unknown.

    `plane` means that the kernel has more than one dimension, as in `count_bank_turns`. Terms that are equal for all
    threads of the warp move all banks alike, and are left out.
    """
    if "data" in symbols.get_varies(offset) or element_bytes not in (4, 8, 16):
        return None
    moving = _PLACE if plane else frozenset("x")
    own = Polynomial(
        {name: times for name, times in offset.terms.items() if any(symbols.varies[one] & moving for one in name)}
    )
    found = []
    for one in list_warp_widths(width) if plane else (WARP,):
        turns = _simulate_warp(symbols, own, element_bytes, conditions, one, width)
        if turns is None:
            return None
        found.append(turns)
    return pick_agreed_turns(found)


def _simulate_warp(
    symbols: Symbols,
    offset: Polynomial,
    element_bytes: int,
    conditions: Sequence[Condition],
    width: int,
    block: int | None,
) -> int | None:
    lanes = range(WARP)
    place: dict[str, Worth] = {
        "threadIdx.x": tuple(lane % width for lane in lanes),
        "threadIdx.y": tuple(lane // width for lane in lanes),
        "threadIdx.z": 0,
    }
    if block is not None:
        place["blockDim.x"] = block
    warp = Threads(place, symbols.parts, symbols.turns, frozenset(), _get_first_block_index)
    worth = expand_threads(warp.evaluate(offset), WARP)
    if None in worth:
        return None
    goes: Truth = True
    for one in conditions:
        if one.tests is not None:
            goes = apply_and(goes, warp.check(one.tests))
    words = [
        one * element_bytes // _WORD if one is not None and comes is not False else None
        for one, comes in zip(worth, expand_threads(goes, WARP), strict=True)
    ]
    at_once = _AT_ONCE // element_bytes
    return max(
        _count_bank_words(words[first : first + at_once], element_bytes // _WORD) for first in range(0, WARP, at_once)
    )


def _count_bank_words(words: Sequence[int | None], wide: int) -> int:
    """Return the words of one bank."""
    banks: dict[int, set[int]] = {}
    for first in words:
        for word in range(first, first + wide) if first is not None else ():
            banks.setdefault(word % WARP, set()).add(word)
    return max(map(len, banks.values()), default=1)


def _get_first_block_index(symbol: str) -> int | None:
    return 0 if symbol.startswith("blockIdx.") else None


def estimate_pitched_turns(
    symbols: Symbols, offset: Polynomial, element_bytes: int, pitch: Collection[str], *, plane: bool
) -> int | None:
    """Return the turns for an array with rows whose size only the build knows, given the names in `pitch`.

    Rows of 16 and of 32 are tried, in blocks as wide, and the fewer turns count. Returns None for less than a fourfold
    conflict.
    """
    found = [
        count_bank_turns(symbols, _substitute_pitch(offset, pitch, size), element_bytes, plane=plane, width=size)
        for size in _TILES
    ]
    least = min((one or 0) for one in found)
    return least if least >= _SURELY else None


def _substitute_pitch(offset: Polynomial, pitch: Collection[str], size: int) -> Polynomial:
    found = ZERO
    for name, times in offset.terms.items():
        rest = tuple(one for one in name if one not in pitch)
        found += Polynomial({rest: times * size ** (len(name) - len(rest))})
    return found
