"""Read and analyse CUDA source."""

from __future__ import annotations

from pathlib import Path

from frx_graph.analyzers.cuda.analysis import CudaAnalysis, detect_cuda_defects
from frx_graph.errors import EvidenceError
from frx_graph.evidence.cuda.parsing import read_cuda
from frx_graph.evidence.cuda.source import CudaSource
from frx_graph.rules.gpu_profile import GpuProfile

_NAMED, _LONGEST_NAME = 3, 100
"""Kernels that an error names, and the longest text for each."""


def analyze_cuda(path: Path, gpu: GpuProfile | None = None) -> tuple[CudaSource, CudaAnalysis]:
    """Analyse the CUDA source at `path`, for `gpu` or for any GPU. Raises `EvidenceError` if the file is not CUDA
    source or cannot be read."""
    source = read_cuda(path)
    if source.unread and not source.kernels and not source.launches:
        names = ", ".join(name[:_LONGEST_NAME] for name in source.unread[:_NAMED])
        raise EvidenceError(f"{path}: no kernel in it can be read ({names})", "does nvcc compile it?")
    return source, detect_cuda_defects(source, gpu)
