"""Draw the roofline as a log-log plot: intensity to the right, FLOP per second upwards, bytes as area."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from frx_graph.reports.advice.roofline import PlacedPoint, Roof
from frx_graph.reports.render.quantities import format_byte_count, format_rate, format_seconds
from frx_graph.reports.render.svg import (
    NARROW_GLYPH,
    Axes,
    Scale,
    draw_circle,
    draw_polyline,
    draw_text,
    make_element,
    make_picture,
)
from frx_graph.support.plain_text import clean_line

FONT = 12.0
NUMBERED = 12
"""Number of points labelled with their rank in the table beside the plot."""
LEAST_INTENSITY = 1e-3
"""Smallest intensity plotted: lower ones would squeeze all others into a corner."""
_LEAST_RADIUS, _MOST_RADIUS = 4.0, 20.0
_DTYPE_CLASSES = {
    "float32": "dt-float32",
    "float64": "dt-float64",
    "bfloat16": "dt-bfloat16",
    "float16": "dt-float16",
    "int8": "dt-int8",
}


def get_dtype_class(dtype: str) -> str:
    """Return the CSS class that colours a dtype."""
    return _DTYPE_CLASSES.get(dtype, "dt-other")


def draw_roofline(roof: Roof, points: Sequence[PlacedPoint], width: float, height: float) -> Markup | None:
    """Return the plot; None if there is no point, or neither a bandwidth nor a timed operator."""
    drawn = [p for p in points if p.height and p.intensity >= LEAST_INTENSITY]
    if not drawn:
        return None
    axes = _make_axes(roof, drawn, width, height)
    under = [*_draw_grid(axes), *_draw_roof(roof, axes)]
    over = [*_draw_circles(drawn, axes), *_draw_roof_labels(roof, axes), *_draw_ranks(drawn, axes)]
    return make_picture(width, height, _describe_plot(roof, drawn), [*under, *over], "roofline")


def _make_axes(roof: Roof, drawn: Sequence[PlacedPoint], width: float, height: float) -> Axes:
    xs = [p.intensity for p in drawn] + [2.0 * ridge for ridge in _list_ridges(roof)]
    ys = [p.height for p in drawn if p.height is not None] + [1.5 * flops for _, flops in roof.peaks]
    x, y = Scale.from_decades(min(xs) / 1.5, max(xs) * 1.5), Scale.from_decades(min(ys) / 1.5, max(ys))
    return Axes(x, y, width, height, left=78.0, right=14.0, top=16.0, bottom=44.0)


def _list_ridges(roof: Roof) -> list[float]:
    return [ridge for dtype, _ in roof.peaks if (ridge := roof.get_ridge(dtype)) is not None]


def _draw_grid(axes: Axes) -> Iterator[Markup]:
    for intensity in axes.x_scale.ticks:
        yield from axes.draw_vertical(intensity, f"{intensity:g}")
    speeds = axes.y_scale.ticks
    for speed in speeds if len(speeds) <= 8 else speeds[::2]:
        yield from axes.draw_horizontal(speed, _format_flops(round(math.log10(speed))))
    yield axes.draw_caption("FLOP per byte of memory traffic")


def _format_flops(exponent: int) -> str:
    """Format 10^10 FLOP/s as `10 GFLOP/s`."""
    prefixes = {0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
    base = min(max(exponent // 3 * 3, 0), 15)
    return f"{10.0 ** (exponent - base):g} {prefixes[base]}FLOP/s"


def _locate_slope(roof: Roof, axes: Axes) -> tuple[float, float, float, float] | None:
    """Return the ends of the line of the bandwidth, which stops at the highest ridge."""
    if roof.bandwidth is None:
        return None
    low = max(axes.x_scale.low, axes.y_scale.low / roof.bandwidth)
    high = min(axes.x_scale.high, axes.y_scale.high / roof.bandwidth)
    high = min(high, max(_list_ridges(roof), default=high))
    return axes.get_x(low), axes.get_y(roof.bandwidth * low), axes.get_x(high), axes.get_y(roof.bandwidth * high)


def _draw_roof(roof: Roof, axes: Axes) -> Iterator[Markup]:
    slope = _locate_slope(roof, axes)
    if slope is None or roof.bandwidth is None:
        return
    yield draw_polyline((slope[:2], slope[2:]), "roof")
    for dtype, flops in roof.peaks:
        left, y = axes.get_x(max(flops / roof.bandwidth, axes.x_scale.low)), axes.get_y(flops)
        yield draw_polyline(((left, y), (axes.width - axes.right, y)), f"roof {get_dtype_class(dtype)}")


def _draw_roof_labels(roof: Roof, axes: Axes) -> Iterator[Markup]:
    """Draw labels above the lines, one below the other if peaks are close."""
    slope = _locate_slope(roof, axes)
    if slope is None:
        return
    x1, y1, x2, y2 = slope
    x, y = x1 + 0.25 * (x2 - x1), y1 + 0.25 * (y2 - y1)
    turned = f"rotate({math.degrees(math.atan2(y2 - y1, x2 - x1)):.2f} {x:.2f} {y:.2f})"
    yield make_element(
        "g", draw_text(format_rate(roof.bandwidth, "B/s"), x, y - 8, "roof-label", "middle"), transform=turned
    )
    free = 0.0
    for dtype, flops in sorted(roof.peaks, key=lambda peak: -peak[1]):
        free = max(axes.get_y(flops) - 5, free + FONT)
        yield draw_text(
            f"{dtype} {format_rate(flops, 'FLOP/s')}", axes.width - axes.right - 3, free, "roof-label", "end"
        )


def _compute_radius(point: PlacedPoint, most: int) -> float:
    return _LEAST_RADIUS + (_MOST_RADIUS - _LEAST_RADIUS) * math.sqrt(point.point.bytes / most)


def _draw_circles(drawn: Sequence[PlacedPoint], axes: Axes) -> Iterator[Markup]:
    most = max(p.point.bytes for p in drawn)
    for placed in drawn:
        kind = "timed" if placed.achieved is not None else "predicted"
        x, y = axes.get_x(placed.intensity), axes.get_y(placed.height or 1.0)
        yield draw_circle(
            x,
            y,
            _compute_radius(placed, most),
            f"point {kind} {get_dtype_class(placed.dtype)}",
            _describe_point(placed),
        )


def _draw_ranks(drawn: Sequence[PlacedPoint], axes: Axes) -> Iterator[Markup]:
    """Draw ranks in or beside the circles, unless they would cover another rank."""
    most = max(p.point.bytes for p in drawn)
    taken: list[tuple[float, float, float, float]] = []
    for rank, placed in enumerate(drawn[:NUMBERED], start=1):
        x, y, r = axes.get_x(placed.intensity), axes.get_y(placed.height or 1.0), _compute_radius(placed, most)
        half = len(str(rank)) * NARROW_GLYPH * FONT / 2
        beside = r + half + 2
        offsets = ((0.0, 0.0), (beside, 0.0), (-beside, 0.0), (0.0, -r - 8), (0.0, r + 8))
        for dx, dy in offsets if r >= 9 else offsets[1:]:
            box = (x + dx - half, y + dy - FONT / 2, x + dx + half, y + dy + FONT / 2)
            if not any(_is_overlapping(box, other) for other in taken):
                taken.append(box)
                inside = "on-point" if (dx, dy) == (0.0, 0.0) and placed.achieved is not None else "off-point"
                yield draw_text(str(rank), x + dx, y + dy + 4.2, f"rank {inside}", "middle")
                break


def _is_overlapping(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _describe_point(placed: PlacedPoint) -> str:
    point = placed.point
    speed = (
        f"{format_rate(placed.achieved, 'FLOP/s')} in {format_seconds(point.seconds)}"
        if placed.achieved is not None
        else f"at most {format_rate(placed.attainable, 'FLOP/s')}"
    )
    return (
        f"{clean_line(point.operator)} at {clean_line(str(point.site))}, {clean_line(placed.dtype)}: "
        f"{placed.intensity:.3g} FLOP/B, {format_byte_count(point.bytes)}, {speed}"
    )


def _describe_plot(roof: Roof, drawn: Sequence[PlacedPoint]) -> str:
    bound = sum(p.bound == "memory" for p in drawn)
    timed = sum(p.achieved is not None for p in drawn)
    return (
        f"Roofline with {len(drawn)} operator call sites, {bound} of them bound by memory, {timed} timed. "
        f"Bandwidth {format_rate(roof.bandwidth, 'B/s')}."
    )
