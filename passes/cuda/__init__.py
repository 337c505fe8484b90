"""Detectors of CUDA source, in the order in which they run. A new one is a file here, its card, two kernels in
`tests/data/cuda`, and a line below."""

from __future__ import annotations

from frx_graph.passes.cuda import (
    possible_shared_memory_bank_conflict,
    shared_memory_without_barrier,
    uncoalesced_access,
)
from frx_graph.passes.cuda.finding import CudaDetector

CUDA_DETECTORS: tuple[CudaDetector, ...] = (
    uncoalesced_access.DETECTOR,
    shared_memory_without_barrier.DETECTOR,
    possible_shared_memory_bank_conflict.DETECTOR,
)
