"""The roofline as a log-log plot: intensity to the right, FLOP per second upwards, bytes as area."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from frx_graph.reports.advice.roofline import PlacedPoint, Roof
from frx_graph.reports.render.plain_text import one_line
from frx_graph.reports.render.quantities import byte_count, rate, seconds
from frx_graph.reports.render.svg import NARROW_GLYPH, element, picture, text, title

FONT = 12.0
NUMBERED = 12
"""Points that carry their rank, as the table beside the plot has it."""
LEAST_INTENSITY = 1e-3
"""Operators that do less than one FLOP per kilobyte would squeeze all others into a corner."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 78.0, 14.0, 16.0, 44.0
_LEAST_RADIUS, _MOST_RADIUS = 4.0, 20.0
_DTYPE_CLASSES = {
    "float32": "dt-float32",
    "float64": "dt-float64",
    "bfloat16": "dt-bfloat16",
    "float16": "dt-float16",
    "int8": "dt-int8",
}


@dataclass(frozen=True, slots=True)
class _Axes:
    """Decades in both directions, and the drawing area that they fill."""

    x_low: int
    x_high: int
    y_low: int
    y_high: int
    width: float
    height: float

    def x(self, intensity: float) -> float:
        share = (math.log10(intensity) - self.x_low) / (self.x_high - self.x_low)
        return _LEFT + share * (self.width - _LEFT - _RIGHT)

    def y(self, flops: float) -> float:
        share = (math.log10(flops) - self.y_low) / (self.y_high - self.y_low)
        return self.height - _BOTTOM - share * (self.height - _TOP - _BOTTOM)


def dtype_class(dtype: str) -> str:
    """The CSS class that colours a dtype."""
    return _DTYPE_CLASSES.get(dtype, "dt-other")


def roofline_plot(roof: Roof, points: Sequence[PlacedPoint], width: float, height: float) -> Markup | None:
    """The plot; None where nothing can be placed: no point, or neither a bandwidth nor a timed operator."""
    drawn = [p for p in points if p.height and p.intensity >= LEAST_INTENSITY]
    if not drawn:
        return None
    axes = _axes(roof, drawn, width, height)
    under = [*_grid(axes), *_roof_lines(roof, axes)]
    over = [*_circles(drawn, axes), *_roof_labels(roof, axes), *_numbers(drawn, axes)]
    return picture(width, height, _description(roof, drawn), [*under, *over], "roofline")


def _axes(roof: Roof, drawn: Sequence[PlacedPoint], width: float, height: float) -> _Axes:
    ridges = [ridge for dtype, _ in roof.peaks if (ridge := roof.ridge(dtype)) is not None]
    xs = [p.intensity for p in drawn] + [2.0 * ridge for ridge in ridges]
    ys = [p.height for p in drawn if p.height is not None] + [1.5 * flops for _, flops in roof.peaks]
    x_low, x_high = math.floor(math.log10(min(xs) / 1.5)), math.ceil(math.log10(max(xs) * 1.5))
    return _Axes(x_low, x_high, math.floor(math.log10(min(ys) / 1.5)), math.ceil(math.log10(max(ys))), width, height)


def _grid(axes: _Axes) -> Iterator[Markup]:
    bottom, right = axes.height - _BOTTOM, axes.width - _RIGHT
    for exponent in range(axes.x_low, axes.x_high + 1):
        x = axes.x(10.0**exponent)
        yield element("path", d=f"M{x:.2f} {_TOP:.2f}V{bottom:.2f}", class_="grid")
        yield text(f"{10.0**exponent:g}", x, bottom + 17, "tick", "middle")
    step = 1 if axes.y_high - axes.y_low <= 7 else 2
    for exponent in range(axes.y_low, axes.y_high + 1, step):
        y = axes.y(10.0**exponent)
        yield element("path", d=f"M{_LEFT:.2f} {y:.2f}H{right:.2f}", class_="grid")
        yield text(_power(exponent), _LEFT - 6, y + 4, "tick", "end")
    yield text("FLOP per byte of memory traffic", (_LEFT + right) / 2, axes.height - 6, "axis", "middle")


def _power(exponent: int) -> str:
    """10^10 FLOP/s as `10 GFLOP/s`."""
    prefixes = {0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
    base = min(max(exponent // 3 * 3, 0), 15)
    return f"{10.0 ** (exponent - base):g} {prefixes[base]}FLOP/s"


def _slope(roof: Roof, axes: _Axes) -> tuple[float, float, float, float] | None:
    """Where the line of the bandwidth begins and ends: it stops at the highest ridge."""
    if roof.bandwidth is None:
        return None
    low = max(10.0**axes.x_low, 10.0**axes.y_low / roof.bandwidth)
    high = min(10.0**axes.x_high, 10.0**axes.y_high / roof.bandwidth)
    ridges = [ridge for dtype, _ in roof.peaks if (ridge := roof.ridge(dtype)) is not None]
    high = min(high, max(ridges, default=high))
    return axes.x(low), axes.y(roof.bandwidth * low), axes.x(high), axes.y(roof.bandwidth * high)


def _roof_lines(roof: Roof, axes: _Axes) -> Iterator[Markup]:
    slope = _slope(roof, axes)
    if slope is None or roof.bandwidth is None:
        return
    yield element("path", d="M{:.2f} {:.2f}L{:.2f} {:.2f}".format(*slope), class_="roof")
    for dtype, flops in roof.peaks:
        left = axes.x(max(flops / roof.bandwidth, 10.0**axes.x_low))
        line = f"M{left:.2f} {axes.y(flops):.2f}H{axes.width - _RIGHT:.2f}"
        yield element("path", d=line, class_=f"roof {dtype_class(dtype)}")


def _roof_labels(roof: Roof, axes: _Axes) -> Iterator[Markup]:
    """Above the lines, and one below the other where peaks lie close together."""
    slope = _slope(roof, axes)
    if slope is None:
        return
    x1, y1, x2, y2 = slope
    x, y = x1 + 0.25 * (x2 - x1), y1 + 0.25 * (y2 - y1)
    turned = f"rotate({math.degrees(math.atan2(y2 - y1, x2 - x1)):.2f} {x:.2f} {y:.2f})"
    yield element("g", text(rate(roof.bandwidth, "B/s"), x, y - 8, "roof-label", "middle"), transform=turned)
    free = 0.0
    for dtype, flops in sorted(roof.peaks, key=lambda peak: -peak[1]):
        free = max(axes.y(flops) - 5, free + FONT)
        yield text(f"{dtype} {rate(flops, 'FLOP/s')}", axes.width - _RIGHT - 3, free, "roof-label", "end")


def _radius(point: PlacedPoint, most: int) -> float:
    return _LEAST_RADIUS + (_MOST_RADIUS - _LEAST_RADIUS) * math.sqrt(point.point.bytes / most)


def _circles(drawn: Sequence[PlacedPoint], axes: _Axes) -> Iterator[Markup]:
    most = max(p.point.bytes for p in drawn)
    for placed in drawn:
        kind = "timed" if placed.achieved is not None else "predicted"
        yield element(
            "circle",
            title(_words(placed)),
            cx=axes.x(placed.intensity),
            cy=axes.y(placed.height or 1.0),
            r=_radius(placed, most),
            class_=f"point {kind} {dtype_class(placed.dtype)}",
        )


def _numbers(drawn: Sequence[PlacedPoint], axes: _Axes) -> Iterator[Markup]:
    """Ranks in or beside the circles, where they cover no other rank."""
    most = max(p.point.bytes for p in drawn)
    taken: list[tuple[float, float, float, float]] = []
    for rank, placed in enumerate(drawn[:NUMBERED], start=1):
        x, y, r = axes.x(placed.intensity), axes.y(placed.height or 1.0), _radius(placed, most)
        half = len(str(rank)) * NARROW_GLYPH * FONT / 2
        beside = r + half + 2
        offsets = ((0.0, 0.0), (beside, 0.0), (-beside, 0.0), (0.0, -r - 8), (0.0, r + 8))
        for dx, dy in offsets if r >= 9 else offsets[1:]:
            box = (x + dx - half, y + dy - FONT / 2, x + dx + half, y + dy + FONT / 2)
            if not any(_overlap(box, other) for other in taken):
                taken.append(box)
                inside = "on-point" if (dx, dy) == (0.0, 0.0) and placed.achieved is not None else "off-point"
                yield text(str(rank), x + dx, y + dy + 4.2, f"rank {inside}", "middle")
                break


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _words(placed: PlacedPoint) -> str:
    point = placed.point
    speed = (
        f"{rate(placed.achieved, 'FLOP/s')} in {seconds(point.seconds)}"
        if placed.achieved is not None
        else f"at most {rate(placed.attainable, 'FLOP/s')}"
    )
    return (
        f"{one_line(point.operator)} at {one_line(str(point.site))}, {one_line(placed.dtype)}: "
        f"{placed.intensity:.3g} FLOP/B, {byte_count(point.bytes)}, {speed}"
    )


def _description(roof: Roof, drawn: Sequence[PlacedPoint]) -> str:
    bound = sum(p.bound == "memory" for p in drawn)
    timed = sum(p.achieved is not None for p in drawn)
    return (
        f"Roofline with {len(drawn)} operator call sites, {bound} of them bound by memory, {timed} timed. "
        f"Bandwidth {rate(roof.bandwidth, 'B/s')}."
    )
