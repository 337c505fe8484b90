"""Place operators on the roofline: which are bound by memory, and how far below the bound they run.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore architectures",
CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from frx_graph.advice import Environment, GraphSummary, RooflinePoint
from frx_graph.reports.render.quantities import drop_non_finite


@dataclass(frozen=True, slots=True)
class Roof:
    """The device: bytes per second, and FLOP per second by dtype; None or empty if not calibrated."""

    bandwidth: float | None
    peaks: tuple[tuple[str, float], ...]

    def get_attainable(self, intensity: float, dtype: str) -> float | None:
        """Return the FLOP per second that an operator of this intensity can reach; None without bandwidth."""
        if self.bandwidth is None:
            return None
        peak = dict(self.peaks).get(dtype)
        slope = intensity * self.bandwidth
        return slope if peak is None else min(slope, peak)

    def get_ridge(self, dtype: str) -> float | None:
        """Return the FLOP per byte at which the bound changes from memory to arithmetic; None if either is unknown."""
        peak = dict(self.peaks).get(dtype)
        return None if peak is None or self.bandwidth is None else peak / self.bandwidth


@dataclass(frozen=True, slots=True)
class PlacedPoint:
    """An operator at a call site. `achieved` is None unless it was timed; `bound` is None if the ridge is unknown."""

    point: RooflinePoint
    dtype: str
    intensity: float
    attainable: float | None
    achieved: float | None
    bound: str | None

    @property
    def height(self) -> float | None:
        """FLOP per second at which it is drawn: achieved, else attainable."""
        return self.achieved if self.achieved is not None else self.attainable

    @property
    def roof_share(self) -> float | None:
        """The achieved speed in percent of the attainable one."""
        if self.achieved is None or not self.attainable:
            return None
        return 100.0 * self.achieved / self.attainable


def build_roof(environment: Environment) -> Roof:
    """Return the device's roof, without numbers that are not positive and finite."""
    bandwidth = drop_non_finite(environment.bandwidth_bytes_per_s)
    peaks = tuple(
        (strip_torch_prefix(peak.dtype), peak.flops_per_s)
        for peak in environment.peak_flops
        if math.isfinite(peak.flops_per_s) and peak.flops_per_s > 0
    )
    return Roof(bandwidth if bandwidth is not None and bandwidth > 0 else None, peaks)


def place_points(graphs: Iterable[GraphSummary], roof: Roof) -> tuple[PlacedPoint, ...]:
    """Return the points that do arithmetic, most bytes first. Copies and views are not plotted."""
    points = [p for graph in graphs for p in graph.roofline if p.flops > 0 and p.bytes > 0]
    placed = []
    for point in points:
        dtype = strip_torch_prefix(point.dtype)
        intensity = point.flops / point.bytes
        seconds = drop_non_finite(point.seconds)
        ridge = roof.get_ridge(dtype)
        placed.append(
            PlacedPoint(
                point=point,
                dtype=dtype,
                intensity=intensity,
                attainable=roof.get_attainable(intensity, dtype),
                achieved=drop_non_finite(point.flops / seconds) if seconds else None,
                bound=None if ridge is None else "memory" if intensity < ridge else "arithmetic",
            )
        )
    return tuple(sorted(placed, key=lambda p: (-p.point.bytes, p.point.operator, p.point.site.location)))


def strip_torch_prefix(dtype: str) -> str:
    """Return the short name of a dtype: `float32`, also for `torch.float32`."""
    return dtype.removeprefix("torch.")
