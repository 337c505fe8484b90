"""Plots of the service's pages: kernels under a roofline, samples of a trial, and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from frx_graph.reports.kernels.kernel_document import KernelPart
from frx_graph.reports.render.quantities import format_byte_count, format_count, format_percent, format_seconds
from frx_graph.reports.render.svg import (
    Axes,
    Scale,
    clip_text,
    draw_circle,
    draw_polyline,
    draw_rect,
    draw_text,
    make_picture,
)
from frx_graph.reports.runs.run_document import SummaryPart
from frx_graph.reports.runs.trace_document import LayoutPart
from frx_graph.reports.trials.trial_document import TrialDocument
from frx_graph.support.plain_text import clean_line

_SMALLEST, _LARGEST = 4.0, 18.0
"""Radii of kernels."""
_LEAST = 1e-9
"""Largest multiple of the ridge or the peak; a kernel beyond it is an error in the file."""
_LEAST_CHANGE = 0.02
"""The axis of a trial shows at least 2 % either way."""
_BAR, _FONT = 22.0, 11.0
_NUMBERS = 80.0
"""Width of the column right of the bars."""
_WIDE_BARS, _NARROW_BARS = (600.0, 190.0), (340.0, 135.0)
"""Widths of the picture and of the names in it."""
_MOST_BARS = 12
_STEP_PARTS: Final = (
    ("waiting for input", "loader_wait_share", "waits"),
    ("copies to the device", "h2d_share", "waits"),
    ("copies from the device", "d2h_share", "waits"),
    ("forward", "forward_share", ""),
    ("backward", "backward_share", ""),
    ("optimizer", "optimizer_share", ""),
    ("waiting for the device", "sync_share", "waits"),
    ("other parts", "other_share", ""),
    ("in nothing recorded", "unexplained_share", ""),
)


def draw_kernel_roofline(kernels: Sequence[KernelPart], width: float, height: float) -> Markup | None:
    """Plot measured kernels against the roofline of their devices' data sheets; None if no kernel can be placed.

    Devices have different peaks, so both axes are relative: arithmetic intensity over the ridge's, and the share of the
    peak. All devices then share one roof.
    """
    points = _raise_roofs([(kernel, *place) for kernel in kernels if (place := _place_under_roof(kernel)) is not None])
    if not points:
        return None
    intensities, reached = [x for _, x, _ in points], [y for _, _, y in points]
    x_scale = Scale.from_decades(min(*intensities, 0.1), max(*intensities, 10.0))
    y_scale = Scale.from_decades(min(*reached, 0.1), 1.0)
    axes = Axes(x_scale, y_scale, width, height, left=52.0, right=14.0, top=12.0, bottom=40.0)
    drawn: list[Markup] = []
    for value in y_scale.ticks:
        drawn += axes.draw_horizontal(value, format_percent(100 * value))
    for value in x_scale.ticks:
        drawn += axes.draw_vertical(value, f"{value:g}×")
    drawn.append(axes.draw_caption("FLOP per byte, over the ridge's"))
    begin = max(x_scale.low, y_scale.low)
    roof = ((begin, begin), (1.0, 1.0), (x_scale.high, 1.0))
    drawn.append(draw_polyline([(axes.get_x(x), axes.get_y(y)) for x, y in roof], "roof"))
    most = max(kernel.seconds or 0.0 for kernel, _, _ in points)
    for kernel, x, y in sorted(points, key=lambda point: -(point[0].seconds or 0.0)):
        share = math.sqrt((kernel.seconds or 0.0) / most) if 0 < most < math.inf else 0.0
        radius = _SMALLEST + (_LARGEST - _SMALLEST) * share
        drawn.append(draw_circle(axes.get_x(x), axes.get_y(y), radius, "kernel", _describe_kernel(kernel, y)))
    described = "; ".join(_describe_kernel(kernel, y) for kernel, _, y in points[:10])
    label = f"Roofline of {format_count(len(points), 'kernel')}. {described}"
    return make_picture(width, height, label, drawn, "roofline")


def _place_under_roof(kernel: KernelPart) -> tuple[float, float] | None:
    """Return the intensity over the ridge's, and the reached share of the peak."""
    gpu = kernel.gpu
    if gpu is None or not gpu.flops_per_byte or not gpu.ridge_flops_per_byte or not gpu.mfu_pct:
        return None
    intensity, reached = gpu.flops_per_byte / gpu.ridge_flops_per_byte, gpu.mfu_pct / 100
    drawable = _LEAST < intensity < 1 / _LEAST and _LEAST < reached < math.inf
    return (intensity, reached) if drawable else None


def _raise_roofs(points: Sequence[tuple[KernelPart, float, float]]) -> list[tuple[KernelPart, float, float]]:
    """Return the points under roofs that no kernel is above: documents of older versions have shares over 100 %."""
    roofs: dict[str, float] = {}
    for kernel, _, reached in points:
        roofs[_get_gpu_name(kernel)] = max(roofs.get(_get_gpu_name(kernel), 1.0), reached)
    return [(kernel, intensity, reached / roofs[_get_gpu_name(kernel)]) for kernel, intensity, reached in points]


def _get_gpu_name(kernel: KernelPart) -> str:
    return "" if kernel.gpu is None else kernel.gpu.name


def _describe_kernel(kernel: KernelPart, reached: float) -> str:
    assert kernel.gpu is not None
    intensity = f"{kernel.gpu.flops_per_byte:.3g} FLOP/byte"
    name = clean_line(kernel.kernel_name, 80)
    return f"{name}: {intensity}, {format_percent(100 * reached)} of the peak, {format_seconds(kernel.seconds)}"


def draw_trial(trial: TrialDocument, width: float, height: float) -> Markup | None:
    """Plot the candidate's speed-up in each round of a trial, by process pair; None without samples."""
    quads = [quad for quad in trial.samples if math.isfinite(quad.log_ratio)]
    if not quads:
        return None
    stats = trial.stats
    ends = [math.log(end) for end in ((stats.ci_low, stats.ci_high) if stats is not None else ()) if end and end > 0]
    values = [*(quad.log_ratio for quad in quads), *ends, -_LEAST_CHANGE, _LEAST_CHANGE]
    low, high = min(values), max(values)
    pairs = sorted({quad.pair for quad in quads})
    axes = Axes(
        Scale(0, len(pairs)), Scale(low, high), width, height, left=60.0, right=12.0, top=10.0, bottom=30.0
    )  # fmt: skip
    drawn: list[Markup] = []
    if len(ends) == 2:
        top, bottom = axes.get_y(ends[1]), axes.get_y(ends[0])
        room = width - axes.left - axes.right
        drawn.append(draw_rect(axes.left, top, room, max(bottom - top, 1.0), "interval", "the interval"))
    for value in (low, 0.0, high):
        drawn += axes.draw_horizontal(value, _format_change(value, 1), "grid" if value else "even")
    for index, pair in enumerate(pairs):
        mine = [quad for quad in quads if quad.pair == pair]
        drawn.append(draw_text(f"pair {pair}", axes.get_x(index + 0.5), height - 8, "tick", "middle"))
        for place, quad in enumerate(mine, start=1):
            x, y = axes.get_x(index + place / (len(mine) + 1)), axes.get_y(quad.log_ratio)
            disturbed = ", disturbed" if quad.void else ""
            note = f"pair {pair}, round {quad.number}: {_format_change(quad.log_ratio, 2)}{disturbed}"
            drawn.append(draw_circle(x, y, 4.0, "sample void" if quad.void else "sample", note))
    counted = f"{format_count(len(quads), 'round')} in {format_count(len(pairs), 'pair')} of processes"
    label = f"{counted}, on an axis from {_format_change(low, 1)} to {_format_change(high, 1)}"
    return make_picture(width, height, label, drawn, "samples")


def _format_change(log_ratio: float, decimals: int) -> str:
    return f"{100 * math.expm1(log_ratio):+.{decimals}f} %"


def draw_step_bars(summary: SummaryPart, *, narrow: bool = False) -> Markup:
    """Draw the recorded parts of a step as bars; `narrow` for a telephone."""
    rows = [(name, getattr(summary, share), class_) for name, share, class_ in _STEP_PARTS]
    shown = [(name, share, format_percent(100 * share), class_) for name, share, class_ in rows if share is not None]
    return _draw_bars(shown, "steps", "Where a step's time goes", narrow)


def draw_layout_bars(layout: Sequence[LayoutPart], *, narrow: bool = False) -> Markup:
    """Draw layout copies by operator and call site: bytes if all are known, else times; `narrow` for a telephone."""
    shown = layout[:_MOST_BARS]
    if all(one.bytes is not None for one in shown):
        rows = [(_describe_site(one), float(one.bytes or 0), format_byte_count(one.bytes), "") for one in shown]
    else:
        rows = [(_describe_site(one), one.total_ms, format_seconds(one.total_ms / 1e3), "") for one in shown]
    return _draw_bars(rows, "layout-bars", "Layout copies by call site", narrow)


def _describe_site(one: LayoutPart) -> str:
    return one.operator if one.site is None else f"{one.site.file.rpartition('/')[2]}:{one.site.line} {one.operator}"


def _draw_bars(rows: Sequence[tuple[str, float, str, str]], class_: str, label: str, narrow: bool) -> Markup:
    """Draw rows of name, value, formatted value, and class."""
    most = max((value for _, value, _, _ in rows), default=0.0)
    if not most:
        return Markup("")
    width, names = _NARROW_BARS if narrow else _WIDE_BARS
    room = width - names - _NUMBERS
    drawn: list[Markup] = []
    for index, (name, value, words, kind) in enumerate(rows):
        top, length = index * _BAR, room * value / most
        drawn.append(draw_text(clip_text(name, names - 8, _FONT), names - 8, top + 15, "tick", "end"))
        drawn.append(draw_rect(names, top + 3, max(length, 1.0), _BAR - 6, kind or None, f"{name}: {words}"))
        drawn.append(draw_text(words, names + length + 6, top + 15, "tick"))
    described = "; ".join(f"{name}: {words}" for name, _, words, _ in rows)
    return make_picture(width, len(rows) * _BAR, f"{label}. {described}", drawn, class_)
