"""The exit code of what Nsight Compute has measured."""

from __future__ import annotations

from frx_graph.analyzers.kernels.analysis import KernelAnalysis


def kernels_code(analysis: KernelAnalysis) -> int:
    """0: nothing holds the kernels back that the metrics tell; 1: something does; 2: they tell nothing."""
    if analysis.primary is not None:
        return 1
    return 0 if analysis.tells else 2
