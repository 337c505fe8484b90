"""Advice on kernels that were only seen through what Nsight Compute has measured of them."""

from __future__ import annotations

from pathlib import Path

from frx_graph.evidence.ncu.csv_file import NcuExport, read_ncu_csv
from frx_graph.passes.kernels.analysis import KernelAnalysis, analyse_kernels
from frx_graph.passes.kernels.kernel_totals import KernelTotals


def analyze_ncu(path: Path) -> tuple[NcuExport, KernelAnalysis]:
    """What the export at `path` says of its kernels. Raises `EvidenceError` for a file that is no such export."""
    totals = KernelTotals()
    export = read_ncu_csv(path, totals.add)
    return export, analyse_kernels(totals.summaries())
