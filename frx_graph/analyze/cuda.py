"""Advice on kernels of which only the source is at hand."""

from __future__ import annotations

from pathlib import Path

from frx_graph.analyzers.cuda.analysis import CudaAnalysis, analyse_cuda
from frx_graph.errors import EvidenceError
from frx_graph.evidence.cuda.parsing import read_cuda
from frx_graph.evidence.cuda.source import CudaSource
from frx_graph.rules.gpu_profile import GpuProfile

_NAMED, _LONGEST_NAME = 3, 100
"""Kernels that an error names, and how much of each."""


def analyze_cuda(path: Path, gpu: GpuProfile | None = None) -> tuple[CudaSource, CudaAnalysis]:
    """What the file at `path` says of its kernels, on `gpu` or on any. Raises `EvidenceError` for a file that
    is no CUDA source, or of which nothing can be read."""
    source = read_cuda(path)
    if source.unread and not source.kernels and not source.launches:
        names = ", ".join(name[:_LONGEST_NAME] for name in source.unread[:_NAMED])
        raise EvidenceError(f"{path}: none of its kernels can be read ({names})", "does nvcc compile it?")
    return source, analyse_cuda(source, gpu)
