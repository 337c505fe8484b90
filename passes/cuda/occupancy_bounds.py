"""How many warps a multiprocessor can hold, as far as a block's size and shared memory decide."""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """Limits of one compute capability. `shared` are bytes for all blocks, `reserved` what the driver takes of each.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications-technical-specifications-per-compute-capability
    """

    name: str
    threads: int
    blocks: int
    shared: int
    reserved: int


MULTIPROCESSORS = (
    Multiprocessor("sm_75", 1024, 16, 64 << 10, 0),
    Multiprocessor("sm_80", 2048, 32, 164 << 10, 1 << 10),
    Multiprocessor("sm_86", 1536, 16, 100 << 10, 1 << 10),
    Multiprocessor("sm_89", 1536, 24, 100 << 10, 1 << 10),
    Multiprocessor("sm_90", 2048, 32, 228 << 10, 1 << 10),
    Multiprocessor("sm_100", 2048, 32, 228 << 10, 1 << 10),
)


def occupancy(multiprocessor: Multiprocessor, threads: int, shared: int) -> float:
    """The most that blocks of `threads` with `shared` bytes can fill, 0..1. Registers are not known, and not in it."""
    warps = -(-threads // WARP)
    most = multiprocessor.threads // WARP
    blocks = min(multiprocessor.blocks, most // warps)
    if shared:
        blocks = min(blocks, multiprocessor.shared // (shared + multiprocessor.reserved))
    return blocks * warps / most


def best_occupancy(threads: int, shared: int) -> float:
    """On the most generous of them: what is low there is low everywhere."""
    return max(occupancy(one, threads, shared) for one in MULTIPROCESSORS)
