"""Detectors of CUDA source, in order. A new one needs a file here, its card, two kernels in `tests/data/cuda`, and a
line below."""

from __future__ import annotations

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
from frx_graph.analyzers.cuda.finding import CudaDetector, DeviceDetector

CUDA_DETECTORS: tuple[CudaDetector | DeviceDetector, ...] = (
    uncoalesced_access.DETECTOR,
    missing_vectorized_loads.DETECTOR,
    no_shared_memory_tiling.DETECTOR,
    possible_shared_memory_bank_conflict.DETECTOR,
    shared_memory_without_barrier.DETECTOR,
    conditional_syncthreads.DETECTOR,
    sync_inside_tight_loop.DETECTOR,
    unnecessary_syncthreads.DETECTOR,
    warp_level_sync_misuse.DETECTOR,
    missing_obvious_bounds_guard.DETECTOR,
    bounds_check_inside_hot_loop.DETECTOR,
    excessive_branching.DETECTOR,
    warp_divergence.DETECTOR,
    no_thread_indexing_detected.DETECTOR,
    low_theoretical_occupancy.DETECTOR,
    poor_block_size_subwarp.DETECTOR,
    poor_block_size_unaligned.DETECTOR,
    high_register_pressure.DETECTOR,
    large_static_shared_memory.DETECTOR,
    fp32_only_matmul.DETECTOR,
    missing_wmma_mma_path.DETECTOR,
    dimensions_not_tensor_core_friendly.DETECTOR,
)
