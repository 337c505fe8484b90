"""How well a side's launches fill the device.

Measured: achieved occupancy, and how much of the theoretical one that is, which a grid that is too small, or blocks of
unequal length, keep it from. Static: the findings of the source about launches and occupancy, and the most that blocks
of that size and shared memory can fill, on the GPU that is named or on the most generous one.
"""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.passes.comparison.finding_score import source_score
from frx_graph.passes.comparison.score_component import Component, component, mean, measured, percentage
from frx_graph.passes.cuda.launch_advice import LaunchAdvice
from frx_graph.passes.cuda.occupancy_bounds import Multiprocessor, occupancy
from frx_graph.passes.kernels.kernel_totals import KernelSummary
from frx_graph.passes.layers import Layers
from frx_graph.rules.cuda_card import Category
from frx_graph.rules.gpu_profile import GpuProfile

_CATEGORIES = frozenset({Category.LAUNCH, Category.OCCUPANCY})
_MOST_THREADS = 1024
"""Of a block, on every device."""


def launch_components(a: Layers, b: Layers, gpu: GpuProfile | None) -> Sequence[Sequence[Component]]:
    """What was measured, and what the source says."""
    achieved = tuple(percentage(side.ncu, "achieved_occupancy") for side in (a, b))
    return (
        (
            component("achieved_occupancy", "ncu", *achieved),
            component("reached_of_theoretical", "ncu", measured(a.ncu, _reached), measured(b.ncu, _reached)),
        ),
        (
            component("launch_findings", "source", source_score(a, _CATEGORIES), source_score(b, _CATEGORIES)),
            component("launch_bound", "source", _bound(a, gpu), _bound(b, gpu)),
        ),
    )


def _reached(kernel: KernelSummary) -> float | None:
    achieved, theoretical = kernel.values.get("achieved_occupancy"), kernel.values.get("theoretical_occupancy")
    return achieved / theoretical if achieved is not None and theoretical else None


def _bound(layers: Layers, gpu: GpuProfile | None) -> float | None:
    return None if layers.source is None else mean(_bound_of(one, gpu) for one in layers.source.analysis.launches)


def _bound_of(launch: LaunchAdvice, gpu: GpuProfile | None) -> float | None:
    limits = None if gpu is None else gpu.architecture.limits
    if limits is None:
        return max((bound for _, bound in launch.occupancy), default=None)
    if launch.threads is None or launch.shared is None or not 0 < launch.threads <= _MOST_THREADS:
        return None
    multiprocessor = Multiprocessor(
        "", limits.threads, limits.blocks, limits.shared_bytes, limits.reserved_shared_bytes
    )
    return occupancy(multiprocessor, launch.threads, launch.shared)
