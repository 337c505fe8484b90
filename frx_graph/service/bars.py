"""Horizontal bars: where a step's time goes, and which call sites copy most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from frx_graph.reports.render.quantities import byte_count, percent, seconds
from frx_graph.reports.render.svg import clipped, element, picture, text, title
from frx_graph.reports.runs.run_parts import SummaryPart
from frx_graph.reports.runs.trace_parts import LayoutPart

_WIDTH, _ROW, _FONT = 600.0, 22.0, 11.0
_NAMES = 190.0
"""What the names at the left take."""
_NUMBERS = 80.0
_MOST = 12
_PARTS: Final = (
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


def step_bars(summary: SummaryPart) -> Markup:
    """The parts of a step that were recorded."""
    rows = [(name, getattr(summary, share), class_) for name, share, class_ in _PARTS]
    return _bars(
        [(name, share, percent(100 * share), class_) for name, share, class_ in rows if share is not None],
        "steps",
        "Where a step's time goes",
    )


def layout_bars(layout: Sequence[LayoutPart]) -> Markup:
    """Layout copies by operator and place: their bytes where the trace has those of all, else their time."""
    shown = layout[:_MOST]
    if all(one.bytes is not None for one in shown):
        rows = [(_place(one), float(one.bytes or 0), byte_count(one.bytes), "") for one in shown]
    else:
        rows = [(_place(one), one.total_ms, seconds(one.total_ms / 1e3), "") for one in shown]
    return _bars(rows, "layout-bars", "Layout copies by call site")


def _place(one: LayoutPart) -> str:
    return one.operator if one.site is None else f"{one.site.file.rpartition('/')[2]}:{one.site.line} {one.operator}"


def _bars(rows: Sequence[tuple[str, float, str, str]], class_: str, label: str) -> Markup:
    most = max((value for _, value, _, _ in rows), default=0.0)
    if not most:
        return Markup("")
    room = _WIDTH - _NAMES - _NUMBERS
    drawn: list[Markup] = []
    for index, (name, value, said, kind) in enumerate(rows):
        top = index * _ROW
        drawn.append(text(clipped(name, _NAMES - 8, _FONT), _NAMES - 8, top + 15, "tick", "end"))
        drawn.append(
            element(
                "rect",
                title(f"{name}: {said}"),
                x=_NAMES,
                y=top + 3,
                width=max(room * value / most, 1.0),
                height=_ROW - 6,
                class_=kind or None,
            )
        )
        drawn.append(text(said, _NAMES + room * value / most + 6, top + 15, "tick"))
    said_all = "; ".join(f"{name}: {said}" for name, _, said, _ in rows)
    return picture(_WIDTH, len(rows) * _ROW, f"{label}. {said_all}", drawn, class_)
