"""Measured kernels against the roofline of their devices' data sheets.

Devices have different peaks, so both axes are relative: arithmetic intensity over that of the ridge, and the part of
the peak that was reached. All devices then have one roof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from frx_graph.reports.kernels.kernel_document import KernelPart
from frx_graph.reports.render.plain_text import one_line
from frx_graph.reports.render.quantities import percent, plural, seconds
from frx_graph.reports.render.svg import element, picture, text, title

_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 14.0, 12.0, 40.0
_SMALLEST, _LARGEST = 4.0, 18.0
_LEAST = 1e-9
"""Of the ridge or the peak: beyond it stands no kernel, but a mistake in a file."""


@dataclass(frozen=True, slots=True)
class _Point:
    kernel: KernelPart
    intensity: float
    """Over the ridge's."""
    reached: float
    """Of the peak, 0..1."""


def kernel_roofline(kernels: Sequence[KernelPart], width: float, height: float) -> Markup | None:
    """The picture, `width` by `height` units; None where no kernel's place is known."""
    points = [point for kernel in kernels if (point := _placed(kernel)) is not None]
    if not points:
        return None
    low_x, high_x = _decades([point.intensity for point in points], 0.1, 10.0)
    low_y, _ = _decades([point.reached for point in points], 0.1, 1.0)
    span = math.log10(high_x / low_x), math.log10(1.0 / low_y)

    def x(intensity: float) -> float:
        return _LEFT + (width - _LEFT - _RIGHT) * math.log10(intensity / low_x) / span[0]

    def y(reached: float) -> float:
        return height - _BOTTOM - (height - _TOP - _BOTTOM) * math.log10(reached / low_y) / span[1]

    drawn: list[Markup] = []
    for exponent in range(round(math.log10(low_y)), 1):
        drawn.append(
            element("line", x1=_LEFT, x2=width - _RIGHT, y1=y(10.0**exponent), y2=y(10.0**exponent), class_="grid")
        )
        drawn.append(text(percent(100 * 10.0**exponent), _LEFT - 6, y(10.0**exponent) + 4, "tick", "end"))
    for exponent in range(round(math.log10(low_x)), round(math.log10(high_x)) + 1):
        at = x(10.0**exponent)
        drawn.append(element("line", x1=at, x2=at, y1=_TOP, y2=height - _BOTTOM, class_="grid"))
        drawn.append(text(f"{10.0**exponent:g}×", at, height - _BOTTOM + 16, "tick", "middle"))
    drawn.append(text("FLOP per byte, over the ridge's", (width + _LEFT) / 2, height - 6, "axis", "middle"))
    begin = max(low_x, low_y)
    roof = [(x(begin), y(begin)), (x(1.0), y(1.0)), (x(high_x), y(1.0))]
    drawn.append(element("polyline", points=" ".join(f"{a:.2f},{b:.2f}" for a, b in roof), class_="roof"))
    most = max((point.kernel.seconds or 0.0 for point in points), default=0.0)
    for point in sorted(points, key=lambda point: -(point.kernel.seconds or 0.0)):
        share = math.sqrt((point.kernel.seconds or 0.0) / most) if 0 < most < math.inf else 0.0
        radius = _SMALLEST + (_LARGEST - _SMALLEST) * share
        drawn.append(
            element(
                "circle", title(_words(point)), cx=x(point.intensity), cy=y(point.reached), r=radius, class_="kernel"
            )
        )
    said = "; ".join(_words(point) for point in points[:10])
    label = f"Roofline of {plural(len(points), 'kernel')}. {said}"
    return picture(width, height, label, drawn, "roofline")


def _placed(kernel: KernelPart) -> _Point | None:
    gpu = kernel.gpu
    if gpu is None or not gpu.flops_per_byte or not gpu.ridge_flops_per_byte or not gpu.mfu_pct:
        return None
    intensity, reached = gpu.flops_per_byte / gpu.ridge_flops_per_byte, gpu.mfu_pct / 100
    drawable = _LEAST < intensity < 1 / _LEAST and _LEAST < reached < math.inf
    return _Point(kernel, intensity, min(reached, 1.0)) if drawable else None


def _decades(values: Sequence[float], at_most: float, at_least: float) -> tuple[float, float]:
    """Powers of ten around all of them, the lower no more than `at_most`, the upper no less than `at_least`."""
    low = 10.0 ** math.floor(math.log10(min([*values, at_most])))
    high = 10.0 ** math.ceil(math.log10(max([*values, at_least])))
    return low, high


def _words(point: _Point) -> str:
    gpu = point.kernel.gpu
    assert gpu is not None
    return (
        f"{one_line(point.kernel.kernel_name, 80)}: {gpu.flops_per_byte:.3g} FLOP/byte, "
        f"{percent(100 * point.reached)} of the peak, {seconds(point.kernel.seconds)}"
    )
