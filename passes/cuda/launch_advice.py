"""What each launch says of its block: its threads, its warps, and how far it can fill a multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass

from frx_graph.evidence.cuda.source import CudaSource, Kernel, Launch, Space
from frx_graph.passes.cuda.occupancy_bounds import MULTIPROCESSORS, WARP, occupancy


@dataclass(frozen=True, slots=True)
class LaunchAdvice:
    """`threads` of a block and `shared` bytes, None where they are no numbers; `occupancy` is the most on each compute
    capability, 0..1, empty where that cannot be told; `suggestion` is None where nothing better is certain."""

    launch: Launch
    threads: int | None
    shared: int | None
    occupancy: tuple[tuple[str, float], ...]
    suggestion: str | None


def launch_advice(source: CudaSource) -> tuple[LaunchAdvice, ...]:
    """One for each launch."""
    kernels = {kernel.name.rsplit("::", 1)[-1]: kernel for kernel in source.kernels}
    return tuple(_advice(launch, kernels.get(launch.name)) for launch in source.launches)


def shared_bytes(kernel: Kernel | None, launch: Launch | None) -> int | None:
    """Bytes of shared memory of a block, None where one of its arrays, or what the launch adds, is no number."""
    if kernel is None:
        return None
    static = [array.bytes for array in kernel.arrays if array.space is Space.SHARED and not array.dynamic]
    if launch is None or any(size is None for size in static):
        return None
    dynamic = 0 if launch.shared is None else launch.shared_bytes
    return None if dynamic is None else sum(size for size in static if size is not None) + dynamic


def _advice(launch: Launch, kernel: Kernel | None) -> LaunchAdvice:
    threads, shared = launch.block.count, shared_bytes(kernel, launch)
    bounds: tuple[tuple[str, float], ...] = ()
    if threads is not None and 0 < threads <= 1024 and shared is not None:
        bounds = tuple((one.name, occupancy(one, threads, shared)) for one in MULTIPROCESSORS)
    return LaunchAdvice(launch, threads, shared, bounds, _suggestion(launch, threads))


def _suggestion(launch: Launch, threads: int | None) -> str | None:
    if threads is None or threads <= 0 or launch.grid.count == 1:
        return None
    if threads > 1024:
        return f"{threads} threads are more than the 1,024 that a block may have"
    whole = -(-threads // WARP) * WARP
    if threads % WARP:
        return f"take {whole} threads: the last warp has {threads % WARP} of {WARP} at work"
    return None
