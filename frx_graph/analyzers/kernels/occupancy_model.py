"""Calculate the number of blocks that fit on a multiprocessor, from the needs of one block.

As in `cuda_occupancy.h`, warps get registers in units, from one of four schedulers with a quarter of them each. Blocks
get shared memory in units, in addition to CUDA's own reserve. The split between L1 and shared memory is assumed to be
the best for the kernel.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from frx_graph.rules.gpu_profile import SmLimits


class Limiter(enum.StrEnum):
    """The scarcest resource for a block."""

    REGISTERS = "registers"
    SHARED_MEMORY = "shared memory"
    WARPS = "warps"
    BLOCKS = "blocks"
    BARRIERS = "barriers"


_LIMITS = {limiter: f"block_limit_{limiter.name.lower()}" for limiter in Limiter}
BLOCK_SIZE = frozenset({Limiter.WARPS, Limiter.BLOCKS, Limiter.BARRIERS})
"""Limits that only another block size changes."""
FULL_PCT = 99.0
"""Theoretical occupancy from which nothing limits it; exports round to a hundredth."""


def find_limiters(values: Mapping[str, float]) -> tuple[Limiter, ...]:
    """Return the resources with Nsight Compute's smallest block limit; nothing if occupancy is full, or limits were not
    measured."""
    if values.get("theoretical_occupancy", 0.0) >= FULL_PCT:
        return ()
    known = {limiter: values[name] for limiter, name in _LIMITS.items() if name in values}
    least = min(known.values(), default=None)
    return tuple(limiter for limiter, limit in known.items() if limit == least)


WARP = 32
SCHEDULERS = 4
"""Schedulers of a multiprocessor, since Volta (`cudaOccSubPartitionsPerMultiprocessor`)."""


def compute_block_limits(limits: SmLimits, threads: int, registers: int, shared_bytes: int) -> Mapping[Limiter, int]:
    """Return the blocks that fit by each resource alone. `registers` are per thread; `shared_bytes` are static and
    dynamic bytes per block."""
    warps = _round_up(threads, WARP) // WARP
    shared = _round_up(shared_bytes + limits.reserved_shared_bytes, limits.shared_unit)
    # Without a reserve, a kernel that needs no shared memory is not limited by it.
    by_shared = limits.shared_bytes // shared if shared else limits.blocks
    return {
        Limiter.REGISTERS: count_register_warps(limits, registers) // warps,
        Limiter.SHARED_MEMORY: by_shared,
        Limiter.WARPS: limits.threads // WARP // warps,
        Limiter.BLOCKS: limits.blocks,
    }


def compute_theoretical_occupancy(limits: SmLimits, threads: int, registers: int, shared_bytes: int) -> float:
    """Return resident warps over those that fit, in percent."""
    blocks = min(compute_block_limits(limits, threads, registers, shared_bytes).values())
    return 100.0 * blocks * (_round_up(threads, WARP) // WARP) / (limits.threads // WARP)


def count_register_warps(limits: SmLimits, registers: int) -> int:
    """Return the warps with enough registers; all warps, for a kernel without registers."""
    if registers <= 0:
        return limits.threads // WARP
    return limits.registers // SCHEDULERS // _round_up(registers * WARP, limits.register_unit) * SCHEDULERS


def compute_register_occupancy(limits: SmLimits, registers: int) -> float:
    """Return the highest occupancy, in percent, with this many registers per thread."""
    most = limits.threads // WARP
    return 100.0 * min(most, count_register_warps(limits, registers)) / most


def compute_most_registers(limits: SmLimits) -> int:
    """Return the registers per thread up to which every warp fits."""
    warps = limits.threads // WARP // SCHEDULERS
    return limits.registers // SCHEDULERS // warps // limits.register_unit * limits.register_unit // WARP


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
