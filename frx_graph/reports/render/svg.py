"""The few pieces of SVG that the report's pictures are made of. All text is made printable and escaped here."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from frx_graph.reports.render.plain_text import one_line

NARROW_GLYPH = 0.58
"""Width of an average character of a system sans-serif font, in font sizes; labels that would not fit are left out."""
_LEAST_CHARACTERS = 8
"""Less of a name than this tells nobody anything."""


def number(value: float) -> str:
    """A coordinate with at most two decimals, the same on every machine."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def element(name: str, *children: Markup, **attributes: str | float | None) -> Markup:
    """An element; `_` in attribute names stands for `-`, `class_` for class; None leaves an attribute out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value if isinstance(value, str) else number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(children)
    return Markup(f"<{name}{written}>{inside}</{name}>") if children else Markup(f"<{name}{written}/>")


def text(content: str, x: float, y: float, class_: str, anchor: str | None = None) -> Markup:
    """A line of text with its baseline at `y`."""
    return element("text", Markup(escape(one_line(content))), x=x, y=y, class_=class_, text_anchor=anchor)


def title(content: str) -> Markup:
    """What a pointer over the parent shows, and a screen reader reads."""
    return element("title", Markup(escape(one_line(content, 400))))


def picture(width: float, height: float, label: str, children: Iterable[Markup], class_: str) -> Markup:
    """The whole drawing, scaled to the width it gets; `label` says what it shows to those who cannot see it."""
    return element(
        "svg",
        *children,
        class_=class_,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=one_line(label, 2000),
        focusable="false",
    )


def fits(content: str, width: float, font_size: float) -> bool:
    """True if the text is likely to be no wider than `width`."""
    return len(content) * NARROW_GLYPH * font_size <= width


def clipped(content: str, width: float, font_size: float) -> str:
    """As much of the text's end as fits, since module paths differ at their end; empty if next to nothing does."""
    room = int(width / (NARROW_GLYPH * font_size))
    if len(content) <= room:
        return content
    return f"…{content[-(room - 1) :]}" if room >= _LEAST_CHARACTERS else ""
