"""A trial's samples as a picture: how much faster the candidate was in each quad, by pair of processes."""

from __future__ import annotations

import math

from markupsafe import Markup

from frx_graph.reports.render.quantities import plural
from frx_graph.reports.render.svg import element, picture, text, title
from frx_graph.reports.trials.trial_document import TrialDocument

_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 12.0, 10.0, 30.0
_LEAST = 0.02
"""Of the axis, either way: 2 %."""
_RADIUS = 4.0


def trial_plot(trial: TrialDocument, width: float, height: float) -> Markup | None:
    """The picture, `width` by `height` units; None without samples."""
    quads = [quad for quad in trial.samples if math.isfinite(quad.log_ratio)]
    if not quads:
        return None
    stats = trial.stats
    ends = [math.log(end) for end in ((stats.ci_low, stats.ci_high) if stats is not None else ()) if end and end > 0]
    values = [*(quad.log_ratio for quad in quads), *ends, -_LEAST, _LEAST]
    low, high = min(values), max(values)
    pairs = sorted({quad.pair for quad in quads})
    column = (width - _LEFT - _RIGHT) / len(pairs)

    def y(log_ratio: float) -> float:
        return _TOP + (height - _TOP - _BOTTOM) * (high - log_ratio) / (high - low)

    drawn: list[Markup] = []
    if len(ends) == 2:
        top, bottom = y(ends[1]), y(ends[0])
        drawn.append(
            element(
                "rect",
                title("the interval"),
                x=_LEFT,
                y=top,
                width=width - _LEFT - _RIGHT,
                height=max(bottom - top, 1.0),
                class_="interval",
            )
        )
    for value in (low, 0.0, high):
        drawn.append(
            element(
                "line",
                x1=_LEFT,
                x2=width - _RIGHT,
                y1=y(value),
                y2=y(value),
                class_="even" if value == 0.0 else "grid",
            )
        )
        drawn.append(text(f"{100 * math.expm1(value):+.1f} %", _LEFT - 6, y(value) + 4, "tick", "end"))
    for index, pair in enumerate(pairs):
        mine = [quad for quad in quads if quad.pair == pair]
        drawn.append(text(f"pair {pair}", _LEFT + (index + 0.5) * column, height - 8, "tick", "middle"))
        for number, quad in enumerate(mine):
            x = _LEFT + (index + (number + 1) / (len(mine) + 1)) * column
            said = f"pair {pair}, quad {quad.number}: {100 * math.expm1(quad.log_ratio):+.2f} %"
            drawn.append(
                element(
                    "circle",
                    title(f"{said}{', void' if quad.void else ''}"),
                    cx=x,
                    cy=y(quad.log_ratio),
                    r=_RADIUS,
                    class_="sample void" if quad.void else "sample",
                )
            )
    ends_said = " to ".join(f"{100 * math.expm1(value):+.1f} %" for value in (low, high))
    label = f"{plural(len(quads), 'quad')} in {plural(len(pairs), 'pair')} of processes, on an axis from {ends_said}"
    return picture(width, height, label, drawn, "samples")
