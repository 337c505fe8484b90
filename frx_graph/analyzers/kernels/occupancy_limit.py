"""Which resource keeps more blocks from a multiprocessor: the smallest of Nsight Compute's own block limits.

A block limit is the number of blocks that fit by one resource alone. That is the only direct evidence: a small block is
no limit by itself, as long as enough of them fit, and shared memory of several launches does not add up.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Limiter(enum.StrEnum):
    """The resource of which there is least, for this block."""

    REGISTERS = "registers"
    SHARED_MEMORY = "shared memory"
    WARPS = "warps"
    BLOCKS = "blocks"
    BARRIERS = "barriers"


_LIMITS = {
    Limiter.REGISTERS: "block_limit_registers",
    Limiter.SHARED_MEMORY: "block_limit_shared_memory",
    Limiter.WARPS: "block_limit_warps",
    Limiter.BLOCKS: "block_limit_blocks",
    Limiter.BARRIERS: "block_limit_barriers",
}
BLOCK_SIZE = frozenset({Limiter.WARPS, Limiter.BLOCKS, Limiter.BARRIERS})
"""Limits that only another size of the block moves."""
FULL_PCT = 99.0
"""Theoretical occupancy from which nothing limits it; exports round to a hundredth."""


def limiters(values: Mapping[str, float]) -> tuple[Limiter, ...]:
    """All that have the smallest limit; empty where the theoretical occupancy is full, and where limits were not
    measured."""
    if values.get("theoretical_occupancy", 0.0) >= FULL_PCT:
        return ()
    known = {limiter: values[name] for limiter, name in _LIMITS.items() if name in values}
    if not known:
        return ()
    least = min(known.values())
    return tuple(limiter for limiter, limit in known.items() if limit == least)
