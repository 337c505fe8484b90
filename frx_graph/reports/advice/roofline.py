"""Place operators on the roofline: which are bound by memory, and how far below the bound they run.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore architectures",
CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frx_graph.advice import Environment, GraphSummary, RooflinePoint
from frx_graph.reports.render.quantities import drop_non_finite


@dataclass(frozen=True, slots=True)
class Roof:
    """The device: bytes per second, and FLOP per second by dtype; None or empty if not calibrated.

    Nothing timed is above it. `raised` names the numbers that a timed operator gave, as it beat the calibration.
    """

    bandwidth: float | None
    peaks: tuple[tuple[str, float], ...]
    raised: tuple[str, ...] = ()

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
    """An operator at a call site. `bound` is None if the ridge is unknown.

    `achieved` is None unless it was timed. `roof_share` is the achieved speed in percent of the attainable one; None if
    either is unknown.
    """

    point: RooflinePoint
    dtype: str
    intensity: float
    attainable: float | None
    achieved: float | None
    roof_share: float | None
    bound: str | None

    @property
    def height(self) -> float | None:
        """FLOP per second at which it is drawn: achieved, else attainable."""
        return self.achieved if self.achieved is not None else self.attainable


def build_roof(environment: Environment, graphs: Sequence[GraphSummary] = ()) -> Roof:
    """Return the device's roof, without numbers that are not positive and finite.

    Where a timed operator of `graphs` beats the calibration, the roof is what that operator reached.
    """
    bandwidth = drop_non_finite(environment.bandwidth_bytes_per_s)
    peaks = {
        strip_torch_prefix(peak.dtype): peak.flops_per_s
        for peak in environment.peak_flops
        if math.isfinite(peak.flops_per_s) and peak.flops_per_s > 0
    }
    calibrated = Roof(bandwidth if bandwidth is not None and bandwidth > 0 else None, tuple(peaks.items()))
    return _raise_roof(calibrated, _list_arithmetic(graphs))


def _raise_roof(roof: Roof, points: Iterable[RooflinePoint]) -> Roof:
    bandwidth, peaks = roof.bandwidth, dict(roof.peaks)
    raised: dict[str, str] = {}
    for point in points:
        speeds = _compute_speeds(point)
        if speeds is None:
            continue
        moved, computed = speeds
        dtype = strip_torch_prefix(point.dtype)
        if bandwidth is not None and moved > bandwidth:
            bandwidth = moved
            raised["bandwidth"] = f"bandwidth by {point.operator}"
        if dtype in peaks and computed > peaks[dtype]:
            peaks[dtype] = computed
            raised[dtype] = f"{dtype} by {point.operator}"
    return Roof(bandwidth, tuple(peaks.items()), tuple(raised.values()))


def _list_arithmetic(graphs: Iterable[GraphSummary]) -> list[RooflinePoint]:
    return [point for graph in graphs for point in graph.roofline if point.flops > 0 and point.bytes > 0]


def _compute_speeds(point: RooflinePoint) -> tuple[float, float] | None:
    """Return the bytes and the FLOP per second of a timed point; None if it was not timed, or in no time at all."""
    seconds = drop_non_finite(point.seconds)
    if not seconds:
        return None
    moved, computed = point.bytes / seconds, point.flops / seconds
    return (moved, computed) if math.isfinite(moved) and math.isfinite(computed) else None


def place_points(graphs: Iterable[GraphSummary], roof: Roof) -> tuple[PlacedPoint, ...]:
    """Return the points that do arithmetic, most bytes first. Copies and views are not plotted.

    A timed point that beats `roof` raises it first, so no share is above 100 %.
    """
    points = _list_arithmetic(graphs)
    roof = _raise_roof(roof, points)
    placed = []
    for point in points:
        dtype = strip_torch_prefix(point.dtype)
        intensity = point.flops / point.bytes
        speeds = _compute_speeds(point)
        ridge = roof.get_ridge(dtype)
        placed.append(
            PlacedPoint(
                point=point,
                dtype=dtype,
                intensity=intensity,
                attainable=roof.get_attainable(intensity, dtype),
                achieved=None if speeds is None else speeds[1],
                roof_share=None if speeds is None else _compute_share(speeds, dtype, roof),
                bound=None if ridge is None else "memory" if intensity < ridge else "arithmetic",
            )
        )
    return tuple(sorted(placed, key=lambda p: (-p.point.bytes, p.point.operator, p.point.site.location)))


def _compute_share(speeds: tuple[float, float], dtype: str, roof: Roof) -> float | None:
    """Return the higher of both speeds' shares of their limits, in percent; None without a bandwidth.

    This is the achieved over the attainable speed, without the rounding errors that may lift that above 100 %.
    """
    if roof.bandwidth is None:
        return None
    moved, computed = speeds
    peak = dict(roof.peaks).get(dtype)
    return 100.0 * max(moved / roof.bandwidth, 0.0 if peak is None else computed / peak)


def strip_torch_prefix(dtype: str) -> str:
    """Return the short name of a dtype: `float32`, also for `torch.float32`."""
    return dtype.removeprefix("torch.")
