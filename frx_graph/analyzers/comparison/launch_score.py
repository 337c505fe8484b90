"""How well a side's launches fill the device.

Measured: achieved occupancy, and how much of the theoretical one that is, which a grid that is too small, or blocks of
unequal length, keep it from. Static: the findings of the source about launches and occupancy, and the most that blocks
of that size and shared memory can fill, on the GPU that is named or on the most generous one.
"""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.analyzers.comparison.finding_score import source_score
from frx_graph.analyzers.comparison.score_component import Component, component, mean, measured, percentage
from frx_graph.analyzers.cuda.launch_advice import LaunchAdvice
from frx_graph.analyzers.kernels.kernel_totals import KernelSummary
from frx_graph.analyzers.layers import Layers
from frx_graph.rules.cuda_card import Category

_CATEGORIES = frozenset({Category.LAUNCH, Category.OCCUPANCY})


def launch_components(a: Layers, b: Layers) -> Sequence[Sequence[Component]]:
    """What was measured, and what the source says."""
    achieved = tuple(percentage(side.ncu, "achieved_occupancy") for side in (a, b))
    return (
        (
            component("achieved_occupancy", "ncu", *achieved),
            component("reached_of_theoretical", "ncu", measured(a.ncu, _reached), measured(b.ncu, _reached)),
        ),
        (
            component("launch_findings", "source", source_score(a, _CATEGORIES), source_score(b, _CATEGORIES)),
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
