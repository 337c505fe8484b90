"""Analyse an Nsight Compute export: the labels of each kernel, the bottlenecks of all, and recommendations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.analyzers.kernels.attribution import Attribution, attribute_kernels
from frx_graph.analyzers.kernels.coalescing import USES, judge_sector_use
from frx_graph.analyzers.kernels.gpu_view import GpuView, raise_roofs, view_gpu
from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.kernels.labels import INSUFFICIENT, Estimates, KernelLabel, label_kernel
from frx_graph.analyzers.kernels.metric_levels import add_derived_values
from frx_graph.analyzers.kernels.recommendations import Bottleneck, Recommendation, recommend_cards
from frx_graph.analyzers.kernels.speed_of_light import Bound, compute_warp_stalls, judge_speed_of_light
from frx_graph.rules.gpu_profile import GpuProfile

_CERTAIN, MEASURED, _UNSURE = 1.0, 0.9, 0.6
_NAMED = 5
"""Limit on the kernels named for a bottleneck, those with the largest weight."""


@dataclass(frozen=True, slots=True)
class LabelledKernel:
    """A kernel with its labels and its share; `gpu` is None if unknown."""

    summary: KernelSummary
    labels: tuple[KernelLabel, ...]
    attribution: Attribution
    gpu: GpuView | None


@dataclass(frozen=True, slots=True)
class KernelAnalysis:
    """All kernels of an export, the most promising first. With `timed`, shares are of time; otherwise of launches."""

    kernels: tuple[LabelledKernel, ...]
    bottlenecks: tuple[Bottleneck, ...]
    recommendations: tuple[Recommendation, ...]
    timed: bool
    with_stalls: int
    """Kernels with measured warp stalls."""

    @property
    def launches(self) -> int:
        """Return the number of launches of all kernels."""
        return sum(kernel.summary.launches for kernel in self.kernels)

    @property
    def uses_gpu(self) -> bool:
        """Return True if the limits or peaks of a GPU add anything."""
        return any(kernel.gpu is not None and kernel.gpu.tells for kernel in self.kernels)

    @property
    def tells(self) -> bool:
        """Return True if anything is known about a kernel, even that nothing limits it."""
        return any(
            (kernel.gpu is not None and kernel.gpu.tells) or all(label.label != INSUFFICIENT for label in kernel.labels)
            for kernel in self.kernels
        )

    @property
    def primary(self) -> Bottleneck | None:
        """Return the bottleneck with the highest score; None if none is known."""
        return next((found for found in self.bottlenecks if found.label != INSUFFICIENT), None)


def analyze_kernels(summaries: Sequence[KernelSummary], gpu: GpuProfile | None = None) -> KernelAnalysis:
    """Analyse counters, and the GPU: `gpu`, or the GPU named in the export."""
    views = raise_roofs([view_gpu(summary, gpu) for summary in summaries])
    labelled = [
        (summary, label_kernel(summary, view or Estimates()), view)
        for summary, view in zip(summaries, views, strict=True)
    ]
    kernels = [
        LabelledKernel(summary, labels, attribution, view)
        for (summary, labels, view), attribution in zip(labelled, attribute_kernels(labelled), strict=True)
    ]
    kernels.sort(key=lambda one: -one.attribution.score)
    bottlenecks = _rank_bottlenecks(kernels)
    return KernelAnalysis(
        kernels=tuple(kernels),
        bottlenecks=bottlenecks,
        recommendations=recommend_cards(bottlenecks),
        timed=all(kernel.attribution.runtime_share_pct is not None for kernel in kernels),
        with_stalls=sum(compute_warp_stalls(summary.values) is not None for summary in summaries),
    )


def _grade_confidence(label: KernelLabel, kernel: LabelledKernel) -> float:
    """Lower the confidence of labels without measured values or a verdict, as in an export of few metrics."""
    if label.label == INSUFFICIENT:
        return _CERTAIN
    unsure = label.estimated or judge_speed_of_light(kernel.summary.values, kernel.summary.rules).bound is Bound.UNKNOWN
    return _UNSURE if unsure else MEASURED


def _rank_bottlenecks(kernels: Sequence[LabelledKernel]) -> tuple[Bottleneck, ...]:
    launches = sum(kernel.summary.launches for kernel in kernels)
    found: dict[str, list[tuple[float, LabelledKernel, KernelLabel]]] = {}
    for kernel in kernels:
        pct = kernel.attribution.runtime_share_pct
        share = kernel.summary.launches / launches if pct is None else pct / 100.0
        for label in kernel.labels:
            found.setdefault(label.label, []).append((share * label.score, kernel, label))
    bottlenecks = []
    for name, seen in found.items():
        seen.sort(key=lambda one: -one[0])
        _, worst, its = seen[0]
        bottlenecks.append(
            Bottleneck(
                label=name,
                score=min(1.0, sum(score for score, _, _ in seen)),
                evidence=tuple(said.evidence for _, _, said in seen[:_NAMED]),
                kernels=tuple(kernel.summary.kernel for _, kernel, _ in seen[:_NAMED]),
                values=add_derived_values(worst.summary.values),
                most_speedup_pct=bound_speedup(name, worst.summary),
                confidence=_grade_confidence(its, worst),
            )
        )
    return tuple(sorted(bottlenecks, key=lambda one: (-one.score, one.label)))


_BOUND_BY_PEAK = frozenset(
    {
        "warp_stall_memory",
        "warp_stall_sync",
        "occupancy_limited",
        "occupancy_limited_by_registers",
        "occupancy_limited_by_shared_memory",
        "occupancy_limited_by_block_size",
        "low_warp_scheduler_utilization",
        "low_issue_efficiency",
    }
)
_LEAST_PCT = 1.0
"""Percent of a peak below which the bound would be a factor of a hundred or more, and says nothing."""


def bound_speedup(label: str, kernel: KernelSummary) -> float | None:
    """Return the highest speed-up in percent from removing this bottleneck alone; None if unbounded.

    A kernel at `c` percent of the compute peak and `m` percent of the memory peak spends `max(c, m)` percent of the
    time on the busier one. Fewer bytes leave compute as the limit; with whole sectors, the kernel moves proportionally
    fewer bytes.
    """
    values = kernel.values
    sol = judge_speed_of_light(values, kernel.rules)
    if sol.compute_pct is None or sol.memory_pct is None:
        return None
    busiest = max(sol.compute_pct, sol.memory_pct)
    if label in _BOUND_BY_PEAK:
        return _compute_speedup(100.0, busiest)
    by_compute = _compute_speedup(busiest, sol.compute_pct)
    judged = (judge_sector_use(kernel.kernel, values, use) for use in USES)
    excess = max((one.excess for one in judged if one is not None), default=None)
    if label == "uncoalesced_access" and by_compute is not None and excess is not None:
        return min(by_compute, 100.0 * (excess - 1))
    return by_compute if label == "memory_bandwidth_bound" else None


def _compute_speedup(now: float, then: float) -> float | None:
    return None if then < _LEAST_PCT else max(0.0, 100.0 * (now / then - 1.0))
