"""Build SVG pictures for reports: elements, bars, and plots with axes. Makes all text printable, and escapes it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

from frx_graph.support.plain_text import clean_line

NARROW_GLYPH = 0.58
"""Width of an average character of a system sans-serif font, in font sizes; labels that do not fit are left out."""
_LEAST_CHARACTERS = 8
"""Fewest characters of a shortened name that can be recognised."""


def format_number(value: float) -> str:
    """Return a coordinate with at most two decimals, the same on every machine."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def make_element(name: str, *children: Markup, **attributes: str | float | None) -> Markup:
    """Return an element; `_` in attribute names stands for `-`, `class_` for class; None leaves an attribute out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value if isinstance(value, str) else format_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(children)
    return Markup(f"<{name}{written}>{inside}</{name}>") if children else Markup(f"<{name}{written}/>")


def draw_text(content: str, x: float, y: float, class_: str, anchor: str | None = None) -> Markup:
    """Return a line of text with its baseline at `y`."""
    return make_element("text", Markup(escape(clean_line(content))), x=x, y=y, class_=class_, text_anchor=anchor)


def make_tooltip(content: str) -> Markup:
    """Return the tooltip of the parent element, which screen readers also read."""
    return make_element("title", Markup(escape(clean_line(content, 400))))


def draw_rect(
    x: float, y: float, width: float, height: float, class_: str | None = None, note: str | None = None
) -> Markup:
    """Return a rectangle, with `note` as its tooltip."""
    notes = () if note is None else (make_tooltip(note),)
    return make_element("rect", *notes, x=x, y=y, width=width, height=height, class_=class_)


def draw_circle(x: float, y: float, radius: float, class_: str, note: str) -> Markup:
    """Return a circle, with `note` as its tooltip."""
    return make_element("circle", make_tooltip(note), cx=x, cy=y, r=radius, class_=class_)


def draw_polyline(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """Return a line through `points`."""
    return make_element("polyline", points=" ".join(f"{x:.2f},{y:.2f}" for x, y in points), class_=class_)


def make_picture(width: float, height: float, label: str, children: Iterable[Markup], class_: str) -> Markup:
    """Return the whole drawing, scaled to the available width; `label` describes it for screen readers."""
    return make_element(
        "svg",
        *children,
        class_=class_,
        viewBox=f"0 0 {format_number(width)} {format_number(height)}",
        role="img",
        aria_label=clean_line(label, 2000),
        focusable="false",
    )


def make_inline_bar(class_: str, *children: Markup) -> Markup:
    """Return a stretchable picture of 100 by 10 units beside a number, which screen readers read instead."""
    return make_element(
        "svg", *children, class_=class_, viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true",
        focusable="false",
    )  # fmt: skip


def can_fit(content: str, width: float, font_size: float) -> bool:
    """Return True if the text is likely to be no wider than `width`."""
    return len(content) * NARROW_GLYPH * font_size <= width


def clip_text(content: str, width: float, font_size: float) -> str:
    """Return as much of the text's end as fits, since module paths differ at the end; empty if too little fits."""
    room = int(width / (NARROW_GLYPH * font_size))
    if len(content) <= room:
        return content
    return f"…{content[-(room - 1) :]}" if room >= _LEAST_CHARACTERS else ""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis, from its lowest to its highest value; linear unless `log`."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def from_decades(cls, low: float, high: float) -> Scale:
        """Return the logarithmic scale between the powers of ten around `low` and `high`."""
        return cls(10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high)), log=True)

    def get_share(self, value: float) -> float:
        """Return the place of `value` between the ends, 0..1."""
        if self.log:
            return math.log10(value / self.low) / math.log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> tuple[float, ...]:
        """Return the powers of ten of a logarithmic scale."""
        low, high = round(math.log10(self.low)), round(math.log10(self.high))
        return tuple(10.0**exponent for exponent in range(low, high + 1))


@dataclass(frozen=True, slots=True)
class Axes:
    """The plot area within a picture of `width` by `height` units; margins hold the labels."""

    x_scale: Scale
    y_scale: Scale
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float

    def get_x(self, value: float) -> float:
        """Return the horizontal coordinate of a value."""
        return self.left + self.x_scale.get_share(value) * (self.width - self.left - self.right)

    def get_y(self, value: float) -> float:
        """Return the vertical coordinate of a value."""
        return self.height - self.bottom - self.y_scale.get_share(value) * (self.height - self.top - self.bottom)

    def draw_vertical(self, value: float, label: str) -> tuple[Markup, Markup]:
        """Return a grid line at a value of the horizontal axis, and its label."""
        x, bottom = self.get_x(value), self.height - self.bottom
        line = make_element("line", x1=x, x2=x, y1=self.top, y2=bottom, class_="grid")
        return line, draw_text(label, x, bottom + 17, "tick", "middle")

    def draw_horizontal(self, value: float, label: str, class_: str = "grid") -> tuple[Markup, Markup]:
        """Return a grid line at a value of the vertical axis, and its label."""
        y = self.get_y(value)
        line = make_element("line", x1=self.left, x2=self.width - self.right, y1=y, y2=y, class_=class_)
        return line, draw_text(label, self.left - 6, y + 4, "tick", "end")

    def draw_caption(self, label: str) -> Markup:
        """Return the name of the horizontal axis."""
        return draw_text(label, (self.left + self.width - self.right) / 2, self.height - 6, "axis", "middle")
