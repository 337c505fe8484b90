"""List the detectors of CUDA source, in order. A new one needs a file here, its card, two kernels in `tests/data/cuda`,
and a line below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from frx_graph.analyzers.cuda import (
    bounds_check_inside_hot_loop,
    conditional_syncthreads,
    dimensions_not_tensor_core_friendly,
    excessive_branching,
    fp32_only_matmul,
    high_register_pressure,
    large_static_shared_memory,
    low_theoretical_occupancy,
    missing_obvious_bounds_guard,
    missing_vectorized_loads,
    missing_wmma_mma_path,
    no_shared_memory_tiling,
    no_thread_indexing_detected,
    poor_block_size_subwarp,
    poor_block_size_unaligned,
    possible_shared_memory_bank_conflict,
    shared_memory_without_barrier,
    sync_inside_tight_loop,
    uncoalesced_access,
    unnecessary_syncthreads,
    warp_divergence,
    warp_level_sync_misuse,
)
from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.evidence.cuda.source import CudaSource
from frx_graph.rules.gpu_profile import GpuProfile

SOURCE_DETECTORS: Mapping[str, Callable[[CudaSource], Iterable[Occurrence]]] = {
    "uncoalesced_access": uncoalesced_access.detect,
    "missing_vectorized_loads": missing_vectorized_loads.detect,
    "no_shared_memory_tiling": no_shared_memory_tiling.detect,
    "possible_shared_memory_bank_conflict": possible_shared_memory_bank_conflict.detect,
    "shared_memory_without_barrier": shared_memory_without_barrier.detect,
    "conditional_syncthreads": conditional_syncthreads.detect,
    "sync_inside_tight_loop": sync_inside_tight_loop.detect,
    "unnecessary_syncthreads": unnecessary_syncthreads.detect,
    "warp_level_sync_misuse": warp_level_sync_misuse.detect,
    "missing_obvious_bounds_guard": missing_obvious_bounds_guard.detect,
    "bounds_check_inside_hot_loop": bounds_check_inside_hot_loop.detect,
    "excessive_branching": excessive_branching.detect,
    "warp_divergence": warp_divergence.detect,
    "no_thread_indexing_detected": no_thread_indexing_detected.detect,
    "poor_block_size_subwarp": poor_block_size_subwarp.detect,
    "poor_block_size_unaligned": poor_block_size_unaligned.detect,
    "fp32_only_matmul": fp32_only_matmul.detect,
    "missing_wmma_mma_path": missing_wmma_mma_path.detect,
    "dimensions_not_tensor_core_friendly": dimensions_not_tensor_core_friendly.detect,
}
"""By their rule, which names the card."""
DEVICE_DETECTORS: Mapping[str, Callable[[CudaSource, GpuProfile | None], Iterable[Occurrence]]] = {
    "low_theoretical_occupancy": low_theoretical_occupancy.detect,
    "high_register_pressure": high_register_pressure.detect,
    "large_static_shared_memory": large_static_shared_memory.detect,
}
"""Detectors that depend on the GPU; None means that the source may run on any."""
