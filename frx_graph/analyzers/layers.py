"""All that is known of one program's kernels: their source, their PTX, what they were measured at, a run of them."""

from __future__ import annotations

from dataclasses import dataclass

from frx_graph.analyzers.cuda.analysis import CudaAnalysis
from frx_graph.analyzers.kernels.analysis import KernelAnalysis
from frx_graph.analyzers.kernels.ptx_analysis import PtxAnalysis
from frx_graph.analyzers.timeline.analysis import RunAnalysis
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.evidence.cuda.source import CudaSource
from frx_graph.evidence.ncu.launch import NcuExport
from frx_graph.evidence.ptx.module import PtxModule


@dataclass(frozen=True, slots=True)
class SourceLayer:
    """CUDA source, and what it says."""

    source: CudaSource
    analysis: CudaAnalysis


@dataclass(frozen=True, slots=True)
class PtxLayer:
    """PTX, and what it and its assembler say; `not_assembled_because` is None if that was asked."""

    module: PtxModule
    analysis: PtxAnalysis
    not_assembled_because: str | None


@dataclass(frozen=True, slots=True)
class NcuLayer:
    """What Nsight Compute has measured, and what that says."""

    export: NcuExport
    analysis: KernelAnalysis


@dataclass(frozen=True, slots=True)
class TraceLayer:
    """A run that was recorded, and what it says."""

    trace: TraceAnalysis
    run: RunAnalysis


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers of one program; None: not at hand."""

    source: SourceLayer | None = None
    ptx: PtxLayer | None = None
    ncu: NcuLayer | None = None
    trace: TraceLayer | None = None
