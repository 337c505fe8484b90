"""How many blocks of a kernel fit on a multiprocessor, from what one block needs: CUDA's occupancy calculation.

As `cuda_occupancy.h` has it: registers are given to warps in units, by one of four schedulers, each of which has a
quarter of them; shared memory is given to blocks in units, with what CUDA reserves. The split of the memory between L1
and shared is taken to be the one that is best for the kernel.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from frx_graph.rules.gpu_profile import SmLimits


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


WARP = 32
SCHEDULERS = 4
"""Of a multiprocessor, from Volta on (`cudaOccSubPartitionsPerMultiprocessor`)."""


def block_limits(limits: SmLimits, threads: int, registers: int, shared_bytes: int) -> Mapping[Limiter, int]:
    """Blocks of so many threads that fit by each resource alone. `registers` are a thread's, `shared_bytes` a block's,
    static and dynamic."""
    warps = _up(threads, WARP) // WARP
    shared = _up(shared_bytes + limits.reserved_shared_bytes, limits.shared_unit)
    # What needs no shared memory is not limited by it, where nothing is reserved.
    by_shared = limits.shared_bytes // shared if shared else limits.blocks
    return {
        Limiter.REGISTERS: warps_by_registers(limits, registers) // warps,
        Limiter.SHARED_MEMORY: by_shared,
        Limiter.WARPS: limits.threads // WARP // warps,
        Limiter.BLOCKS: limits.blocks,
    }


def theoretical_occupancy_pct(limits: SmLimits, threads: int, registers: int, shared_bytes: int) -> float:
    """Warps that can be resident over those that the multiprocessor has place for."""
    blocks = min(block_limits(limits, threads, registers, shared_bytes).values())
    return 100.0 * blocks * (_up(threads, WARP) // WARP) / (limits.threads // WARP)


def warps_by_registers(limits: SmLimits, registers: int) -> int:
    """Warps for which there are registers; all, for a kernel that uses none."""
    if registers <= 0:
        return limits.threads // WARP
    return limits.registers // SCHEDULERS // _up(registers * WARP, limits.register_unit) * SCHEDULERS


def register_occupancy_pct(limits: SmLimits, registers: int) -> float:
    """The most occupancy that so many registers a thread allow, whatever the block."""
    most = limits.threads // WARP
    return 100.0 * min(most, warps_by_registers(limits, registers)) / most


def most_registers(limits: SmLimits) -> int:
    """Registers a thread up to which every warp finds place."""
    warps = limits.threads // WARP // SCHEDULERS
    return limits.registers // SCHEDULERS // warps // limits.register_unit * limits.register_unit // WARP


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
