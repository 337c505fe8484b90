"""Read and analyse a report or an export of Nsight Compute."""

from __future__ import annotations

from pathlib import Path

from frx_graph.analyzers.kernels.analysis import KernelAnalysis, analyze_kernels
from frx_graph.analyzers.kernels.kernel_totals import KernelTotals
from frx_graph.evidence.file_kind import FileKind
from frx_graph.evidence.ncu.csv_file import read_ncu_csv
from frx_graph.evidence.ncu.launch import NcuExport
from frx_graph.evidence.ncu.report_file import read_ncu_report
from frx_graph.rules.gpu_profile import GpuProfile


def analyze_ncu(
    path: Path, gpu: GpuProfile | None = None, kind: FileKind = FileKind.NCU_CSV
) -> tuple[NcuExport, KernelAnalysis]:
    """Analyse the export or report at `path`, for `gpu` instead of the device that it names. Raises `EvidenceError` for
    a file of another kind."""
    totals = KernelTotals()
    read = read_ncu_report if kind is FileKind.NCU_REPORT else read_ncu_csv
    export = read(path, totals.add)
    analysis = analyze_kernels(totals.summarize_kernels(), gpu)
    return export, analysis
