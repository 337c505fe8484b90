"""How well a side uses memory.

Measured, of the same work: `traffic`, the lesser side's bytes of DRAM over this side's. Where bytes are not known, or
the work is not the same, what hints at them: DRAM throughput over its peak (more of it is never worse: it is the limit
that a kernel without waste gets to), and the rates of hits in L1 and L2. With either, `coalescing`: 4 sectors for each
load of a warp over those that it took; 8 and 16 sectors, of loads of 8 and 16 bytes a thread, waste nothing.

Static: the findings of the source about memory. That shared memory is used scores nothing by itself: what is used once
gains nothing by it, and where it helps, the traffic shows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from frx_graph.analyzers.comparison.score_component import Component, component, measured, percentage, source_score
from frx_graph.analyzers.kernels.gpu_view import dram_bytes
from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.kernels.labels import COALESCED_SECTORS, VECTOR_SECTORS, sectors_per_load
from frx_graph.analyzers.layers import Layers, NcuLayer
from frx_graph.rules.cuda_card import Category


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


_LEAST_TRAFFIC = 1e6
"""Bytes; who moves fewer, whose data stays in L2, is not told apart by them."""
_WITHIN = 0.02


def memory_components(a: Layers, b: Layers, *, same_work: bool) -> Sequence[Sequence[Component]]:
    """What was measured, and what the source says."""
    coalescing = component("coalescing", "ncu", measured(a.ncu, _coalescing), measured(b.ncu, _coalescing))
    traffic = _traffic(a, b) if same_work else None
    counters = (
        (traffic,)
        if traffic is not None
        else tuple(
            component(name, "ncu", percentage(a.ncu, name), percentage(b.ncu, name))
            for name in ("dram_throughput", "l1_hit_rate", "l2_hit_rate")
        )
    )
    found = component(
        "memory_findings", "source", source_score(a, frozenset({Category.MEMORY})), source_score(b, _MEMORY)
    )
    return (*counters, coalescing), (found,)


_MEMORY = frozenset({Category.MEMORY})


def _traffic(a: Layers, b: Layers) -> Component | None:
    ours, theirs = total_traffic(a.ncu), total_traffic(b.ncu)
    if ours is None or theirs is None or max(ours, theirs) < _LEAST_TRAFFIC:
        return None
    least = min(ours, theirs)
    return component("traffic", "ncu", least / ours if ours else 1.0, least / theirs if theirs else 1.0)


def _coalescing(kernel: KernelSummary) -> float | None:
    sectors = sectors_per_load(kernel.values)
    if sectors is None:
        return None
    if sectors <= 0 or any(abs(sectors - vector) <= _WITHIN * vector for vector in VECTOR_SECTORS):
        return 1.0
    return min(1.0, COALESCED_SECTORS / sectors)
