"""Simulate bank conflicts thread by thread, for offsets without a constant stride: remainders, quotients and bits."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from frx_graph.evidence.cuda.concrete import Threads, Truth, Worth, apply_and, expand_threads
from frx_graph.evidence.cuda.polynomial import ZERO, Polynomial
from frx_graph.evidence.cuda.source import Condition
from frx_graph.evidence.cuda.values import (
    WARP,
    Symbols,
    count_bank_turns,
    count_bank_words,
    list_warp_widths,
    pick_agreed_turns,
)

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
    known: dict[str, Worth] = {
        "threadIdx.x": tuple(lane % width for lane in lanes),
        "threadIdx.y": tuple(lane // width for lane in lanes),
        "threadIdx.z": 0,
    }
    if block is not None:
        known["blockDim.x"] = block
    in_first_block = {f"blockIdx.{axis}": 0 for axis in "xyz"} | {"blockIdx.yz": 0}
    warp = Threads(known, symbols.parts, symbols.turns, frozenset(), in_first_block.get)
    places = expand_threads(warp.evaluate(offset), WARP)
    if None in places:
        return None
    goes: Truth = True
    for one in conditions:
        if one.tests is not None:
            goes = apply_and(goes, warp.check(one.tests))
    wide, at_once = element_bytes // _WORD, _AT_ONCE // element_bytes
    batches: list[list[int]] = [[] for _ in range(WARP // at_once)]
    for lane, (place, comes) in enumerate(zip(places, expand_threads(goes, WARP), strict=True)):
        if place is not None and comes is not False:
            batches[lane // at_once].append(place * wide)
    return max(count_bank_words(batch, wide) for batch in batches)


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
