"""Advice on kernels of which only the source is at hand."""

from __future__ import annotations

from pathlib import Path

from frx_graph.evidence.cuda.parsing import read_cuda
from frx_graph.evidence.cuda.source import CudaSource
from frx_graph.passes.cuda.analysis import CudaAnalysis, analyse_cuda
from frx_graph.rules.gpu_profile import GpuProfile


def analyze_cuda(path: Path, gpu: GpuProfile | None = None) -> tuple[CudaSource, CudaAnalysis]:
    """What the file at `path` says of its kernels, on `gpu` or on any. Raises `EvidenceError` for a file that
    is no CUDA source."""
    source = read_cuda(path)
    return source, analyse_cuda(source, gpu)
