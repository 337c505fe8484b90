"""Judge the block of each launch: its threads, its warps, and the part of a multiprocessor that it can fill."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from frx_graph.analyzers.cuda.finding import list_target_limits
from frx_graph.analyzers.kernels.occupancy_model import WARP, Limiter, compute_block_limits
from frx_graph.evidence.cuda.source import CudaSource, Kernel, Launch, Space
from frx_graph.rules.gpu_profile import GpuProfile, SmLimits

MOST_THREADS = 1024
"""Limit for a block: https://docs.nvidia.com/cuda/cuda-c-programming-guide/, technical specifications per capability.
"""


@dataclass(frozen=True, slots=True)
class Residency:
    """Occupancy of one multiprocessor by a block, registers aside.

    `occupancy` is 0..1, and `limiter` the resource that limits it, None if every warp fits. `waves` counts how often
    the grid fills the whole GPU, None if its size or the number of multiprocessors is unknown.
    """

    gpu: str
    blocks: int
    occupancy: float
    limiter: Limiter | None
    waves: float | None


@dataclass(frozen=True, slots=True)
class LaunchAdvice:
    """The `threads` and `shared` bytes of a block; None if they are not numbers. `residency` is for the named GPU, or
    for each compute capability; empty if unknown. `suggestion` is None if nothing better is certain."""

    launch: Launch
    threads: int | None
    shared: int | None
    residency: tuple[Residency, ...]
    suggestion: str | None


def advise_on_launches(source: CudaSource, gpu: GpuProfile | None) -> tuple[LaunchAdvice, ...]:
    """Judge each launch."""
    kernels = {kernel.name.rsplit("::", 1)[-1]: kernel for kernel in source.kernels}
    return tuple(_advise_on_launch(launch, kernels.get(launch.name), gpu) for launch in source.launches)


def _count_shared_bytes(kernel: Kernel | None, launch: Launch) -> int | None:
    """Return the shared memory of a block in bytes; None if a size is not a number."""
    if kernel is None:
        return None
    sizes = [array.bytes for array in kernel.arrays if array.space is Space.SHARED and not array.dynamic]
    sizes.append(0 if launch.shared is None else launch.shared_bytes)
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _advise_on_launch(launch: Launch, kernel: Kernel | None, gpu: GpuProfile | None) -> LaunchAdvice:
    threads, shared = launch.block.count, _count_shared_bytes(kernel, launch)
    found: tuple[Residency, ...] = ()
    if threads is not None and 0 < threads <= MOST_THREADS and shared is not None:
        found = _list_residencies(gpu, threads, shared)
        sms, grid = None if gpu is None or gpu.product is None else gpu.product.sms, launch.grid.count
        if sms is not None and grid is not None and grid > 0:
            found = tuple(replace(one, waves=grid / (one.blocks * sms) if one.blocks else None) for one in found)
    return LaunchAdvice(launch, threads, shared, found, _suggest_block(launch, threads, shared, gpu))


@functools.lru_cache(maxsize=1024)
def _list_residencies(gpu: GpuProfile | None, threads: int, shared: int) -> tuple[Residency, ...]:
    """Return residencies without `waves`; cached, since most launches have one of a few block sizes."""
    found = []
    for name, limits in list_target_limits(gpu).items():
        by_resource = dict(compute_block_limits(limits, threads, 0, shared))
        del by_resource[Limiter.REGISTERS]
        limiter = min(by_resource, key=lambda one: by_resource[one])
        blocks = by_resource[limiter]
        occupancy = blocks * -(-threads // WARP) / (limits.threads // WARP)
        found.append(Residency(name, blocks, occupancy, limiter if occupancy < 1 else None, None))
    return tuple(found)


def _suggest_block(launch: Launch, threads: int | None, shared: int | None, gpu: GpuProfile | None) -> str | None:
    if threads is None or threads <= 0 or launch.grid.count == 1:
        return None
    if threads > MOST_THREADS:
        return f"{threads} threads are more than the {MOST_THREADS:,} that a block may have"
    whole = -(-threads // WARP) * WARP
    if threads % WARP:
        return f"take {whole} threads: the last warp has {threads % WARP} of {WARP} at work"
    if gpu is None:
        return None
    # A block with shared memory would need more of it if it grew.
    fuller = _find_fuller_block(list_target_limits(gpu)[gpu.name], threads) if shared == 0 else None
    if fuller is not None:
        return f"take {fuller} threads: so small, as many blocks as {gpu.name} holds leave warps' places empty"
    sms, grid = None if gpu.product is None else gpu.product.sms, launch.grid.count
    if sms is not None and grid is not None and 0 < grid < sms:
        return f"{grid} blocks: {sms - grid} of the {sms} multiprocessors of {gpu.name} get none"
    return None


def _find_fuller_block(limits: SmLimits, threads: int) -> int | None:
    """Return the threads of the smallest block that fills a multiprocessor, if `threads` are too few to."""
    if compute_block_limits(limits, threads, 0, 0)[Limiter.WARPS] <= limits.blocks:
        return None
    return -(-limits.threads // limits.blocks // WARP) * WARP
