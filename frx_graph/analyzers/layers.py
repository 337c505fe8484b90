"""Records of the evidence for one program's kernels: source, PTX, counters and a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    """CUDA source and its analysis."""

    source: CudaSource
    analysis: CudaAnalysis


@dataclass(frozen=True, slots=True)
class PtxLayer:
    """PTX and its analysis; `not_assembled_because` is None if the assembler ran."""

    module: PtxModule
    analysis: PtxAnalysis
    not_assembled_because: str | None


@dataclass(frozen=True, slots=True)
class NcuLayer:
    """A measurement of Nsight Compute and its analysis."""

    export: NcuExport
    analysis: KernelAnalysis


@dataclass(frozen=True, slots=True)
class TraceLayer:
    """A recorded run and its analysis."""

    trace: TraceAnalysis
    run: RunAnalysis


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of one program; None: not available."""

    source: SourceLayer | None = None
    ptx: PtxLayer | None = None
    ncu: NcuLayer | None = None
    trace: TraceLayer | None = None
