"""How well a side uses the arithmetic of a multiprocessor.

Measured: issue slots busy; what is left of the time that warps are resident beside the largest reason that they wait
for; and of kernels that multiply matrices the tensor pipe. Static: the findings of the source about control flow,
synchronisation and tensor cores, and PTX's labels of double precision and of branches.
"""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.analyzers.comparison.finding_score import ptx_score, source_score
from frx_graph.analyzers.comparison.score_component import Component, component, measured, percentage
from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.kernels.labels import issue_slots_busy, multiplies_matrices
from frx_graph.analyzers.kernels.warp_stalls import warp_stalls
from frx_graph.analyzers.layers import Layers, NcuLayer
from frx_graph.rules.cuda_card import Category

_CATEGORIES = frozenset({Category.CONTROL_FLOW, Category.SYNCHRONIZATION, Category.TENSOR_CORES})
_LABELS = frozenset({"ptx_fp64_usage", "ptx_branch_divergence_risk"})


def compute_components(a: Layers, b: Layers) -> Sequence[Sequence[Component]]:
    """What was measured, and what source and PTX say."""
    counters = [
        component("issue_slots_busy", "ncu", measured(a.ncu, _issued), measured(b.ncu, _issued)),
        component("not_stalled", "ncu", measured(a.ncu, _not_stalled), measured(b.ncu, _not_stalled)),
    ]
    if _multiplies(a.ncu) and _multiplies(b.ncu):
        pipe_a, pipe_b = percentage(a.ncu, "tensor_pipe"), percentage(b.ncu, "tensor_pipe")
        counters.append(component("tensor_pipe", "ncu", pipe_a, pipe_b))
    static = (
        component("compute_findings", "source", source_score(a, _CATEGORIES), source_score(b, _CATEGORIES)),
        component("compute_labels", "ptx", ptx_score(a, _LABELS), ptx_score(b, _LABELS)),
    )
    return tuple(counters), static


def _multiplies(layer: NcuLayer | None) -> bool:
    """Whether all its kernels multiply matrices: of others the tensor pipe says nothing."""
    return layer is not None and all(
        multiplies_matrices(kernel.summary.kernel, kernel.summary.values) for kernel in layer.analysis.kernels
    )


def _issued(kernel: KernelSummary) -> float | None:
    busy = issue_slots_busy(kernel.values)
    return None if busy is None else busy / 100.0


def _not_stalled(kernel: KernelSummary) -> float | None:
    stalls = warp_stalls(kernel.values)
    if stalls is None:
        return None
    return 1.0 if stalls.dominant is None else 1.0 - stalls.shares[stalls.dominant]
