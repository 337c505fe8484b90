"""Four efficiencies of both sides, 0..1, by the same evidence of each.

A dimension has components. Those that were measured count where both sides have one of them, else the static ones; only
components that both have count, each as much as another. Where nothing is known of both, the dimension is not available
and the others weigh more. docs/compare.md has the formulas and what they rest on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from frx_graph.analyzers.comparison.matching import Winner
from frx_graph.analyzers.comparison.memory_score import memory_components
from frx_graph.analyzers.comparison.ncu_diff import match_measured
from frx_graph.analyzers.comparison.register_score import register_components
from frx_graph.analyzers.comparison.score_component import (
    Component,
    component,
    mean,
    measured,
    percentage,
    ptx_score,
    source_score,
)
from frx_graph.analyzers.cuda.launch_advice import LaunchAdvice
from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.kernels.labels import issue_slots_busy, multiplies_matrices
from frx_graph.analyzers.kernels.speed_of_light import warp_stalls
from frx_graph.analyzers.layers import Layers, NcuLayer
from frx_graph.rules.cuda_card import Category

_LAUNCH = frozenset({Category.LAUNCH, Category.OCCUPANCY})


def launch_components(a: Layers, b: Layers) -> Sequence[Sequence[Component]]:
    """What was measured, and what the source says."""
    achieved = tuple(percentage(side.ncu, "achieved_occupancy") for side in (a, b))
    return (
        (
            component("achieved_occupancy", "ncu", *achieved),
            component("reached_of_theoretical", "ncu", measured(a.ncu, _reached), measured(b.ncu, _reached)),
        ),
        (
            component("launch_findings", "source", source_score(a, _LAUNCH), source_score(b, _LAUNCH)),
            component("launch_bound", "source", _bound(a), _bound(b)),
        ),
    )


def _reached(kernel: KernelSummary) -> float | None:
    achieved, theoretical = kernel.values.get("achieved_occupancy"), kernel.values.get("theoretical_occupancy")
    return achieved / theoretical if achieved is not None and theoretical else None


def _bound(layers: Layers) -> float | None:
    if layers.source is None:
        return None
    return mean(_bound_of(launch) for launch in layers.source.analysis.launches)


def _bound_of(launch: LaunchAdvice) -> float | None:
    return max((one.occupancy for one in launch.residency), default=None)


_COMPUTE = frozenset({Category.CONTROL_FLOW, Category.SYNCHRONIZATION, Category.TENSOR_CORES})
_COMPUTE_LABELS = frozenset({"ptx_fp64_usage", "ptx_branch_divergence_risk"})


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
        component("compute_findings", "source", source_score(a, _COMPUTE), source_score(b, _COMPUTE)),
        component("compute_labels", "ptx", ptx_score(a, _COMPUTE_LABELS), ptx_score(b, _COMPUTE_LABELS)),
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


DimensionName = Literal["register_efficiency", "memory_efficiency", "compute_efficiency", "launch_efficiency"]
WEIGHTS: Mapping[DimensionName, float] = MappingProxyType(
    {"register_efficiency": 0.2, "memory_efficiency": 0.3, "compute_efficiency": 0.3, "launch_efficiency": 0.2}
)
SCORE_BAND = 0.02
"""Scores within it are equal: percentages of two profiles of one kernel differ by a point or two."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """`components` are those that count: of both sides if it is `available`, else of the side of which there is
    anything, whose score stands alone."""

    name: DimensionName
    weight: float
    score_a: float | None
    score_b: float | None
    available: bool
    components: tuple[Component, ...]

    @property
    def winner(self) -> Winner:
        """The higher score."""
        return higher_score(self.score_a, self.score_b) if self.available else Winner.UNKNOWN


def scorecard(a: Layers, b: Layers, *, whole_runs: bool = False) -> tuple[Dimension, ...]:
    """All four. `whole_runs` says that both were measured with all their kernels, so that bytes can be compared
    although kernels cannot."""
    same_work = whole_runs
    if a.ncu is not None and b.ncu is not None:
        matching = match_measured(a.ncu, b.ncu)
        same_work |= matching.complete and all(pair.a.launches == pair.b.launches for pair in matching.pairs)
    return (
        _dimension("register_efficiency", register_components(a, b)),
        _dimension("memory_efficiency", memory_components(a, b, same_work=same_work)),
        _dimension("compute_efficiency", compute_components(a, b)),
        _dimension("launch_efficiency", launch_components(a, b)),
    )


def weighted_scores(dimensions: Sequence[Dimension]) -> tuple[float, float] | None:
    """The scores of both sides over the dimensions that are available; None where none is."""
    known = [
        (one.weight, one.score_a, one.score_b)
        for one in dimensions
        if one.available and one.score_a is not None and one.score_b is not None
    ]
    weight = sum(weight for weight, _, _ in known)
    if not known:
        return None
    return sum(w * a for w, a, _ in known) / weight, sum(w * b for w, _, b in known) / weight


def higher_score(a: float | None, b: float | None) -> Winner:
    """The side that has it, unless they are within `SCORE_BAND`."""
    if a is None or b is None:
        return Winner.UNKNOWN
    if abs(a - b) < SCORE_BAND:
        return Winner.TIE
    return Winner.A if a > b else Winner.B


def _dimension(name: DimensionName, groups: Sequence[Sequence[Component]]) -> Dimension:
    """`groups` of components, the best evidence first."""
    for group in groups:
        common = tuple(one for one in group if one.a is not None and one.b is not None)
        if common:
            scores = mean(one.a for one in common), mean(one.b for one in common)
            return Dimension(name, WEIGHTS[name], *scores, available=True, components=common)
    alone_a = next((known for group in groups if (known := [one for one in group if one.a is not None])), [])
    alone_b = next((known for group in groups if (known := [one for one in group if one.b is not None])), [])
    return Dimension(
        name,
        WEIGHTS[name],
        mean(one.a for one in alone_a),
        mean(one.b for one in alone_b),
        available=False,
        components=tuple(one for group in groups for one in group if one in alone_a or one in alone_b),
    )
