"""How many bytes a side's kernels move through DRAM, together."""

from __future__ import annotations

import math

from frx_graph.analyzers.kernels.gpu_view import dram_bytes
from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.layers import NcuLayer


def total_traffic(layer: NcuLayer | None) -> float | None:
    """Bytes of all launches; None where they are not known of every kernel."""
    if layer is None:
        return None
    found = [kernel_traffic(kernel.summary) for kernel in layer.analysis.kernels]
    known = [moved for moved in found if moved is not None]
    return math.fsum(known) if found and len(known) == len(found) else None


def kernel_traffic(kernel: KernelSummary) -> float | None:
    """Bytes as counted, or bandwidth times time."""
    counted = dram_bytes(kernel.values)
    bandwidth = kernel.values.get("dram_bandwidth")
    if counted is not None or bandwidth is None or kernel.seconds is None:
        return counted
    return bandwidth * kernel.seconds
