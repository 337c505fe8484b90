"""Set up Jinja for HTML: strings are made printable, then escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape

from frx_graph.reports.advice import wording
from frx_graph.reports.advice.copy_sites import KIND_WORDS, draw_copy_bar, get_kind_class, group_by_cause
from frx_graph.reports.advice.layout_map import describe_layout, get_layout_class
from frx_graph.reports.advice.roofline_plot import get_dtype_class
from frx_graph.reports.render import quantities
from frx_graph.reports.render.marked_text import CodeBlock, Run, split_blocks, split_lines, split_runs
from frx_graph.reports.render.svg import draw_rect, make_inline_bar
from frx_graph.support.plain_text import clean_line

LONGEST_TEXT: Final = 4000


def make_environment(templates: Mapping[str, str], root: Path) -> Environment:
    """Return an environment with these templates, by name; files are named relative to `root`."""
    environment = Environment(
        loader=DictLoader(dict(templates)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_make_printable,
    )
    environment.filters.update(_make_filters(root))
    return environment


def _make_filters(root: Path) -> dict[str, Callable[..., Any]]:
    return {
        "name": clean_line,
        "text": lambda value: clean_line(value, LONGEST_TEXT),
        "source": lambda value: Markup("\n").join(escape(line) for line in split_lines(value)),
        "marked": lambda value: _render_runs(split_runs(clean_line(value, LONGEST_TEXT))),
        "prose": _render_prose,
        "copy_rows": group_by_cause,
        "bytes": quantities.format_byte_count,
        "percent": quantities.format_percent,
        "plural": quantities.format_count,
        "seconds": quantities.format_seconds,
        "flops": partial(quantities.format_rate, unit="FLOP/s"),
        "bandwidth": partial(quantities.format_rate, unit="B/s"),
        "location": lambda site: _make_breakable(wording.format_location(site, root)),
        "known_count": wording.format_known_count,
        "need": wording.explain_need,
        "place": lambda finding: _make_breakable(wording.format_finding_place(finding, root)),
        "impact": wording.describe_impact,
        "frequency": wording.format_frequency,
        "search_words": wording.describe_search,
        "strongest": wording.sort_evidence,
        "offer": wording.describe_offer,
        "tried_words": wording.format_tried,
        "layout_class": get_layout_class,
        "layout_words": describe_layout,
        "kind_class": get_kind_class,
        "kind_words": lambda kind: KIND_WORDS[kind],
        "dtype_class": get_dtype_class,
        "bar": draw_copy_bar,
        "meter": draw_meter,
    }


def draw_meter(share: float) -> Markup:
    """Return a bar that is `share` full, 0..1."""
    return make_inline_bar("meter", draw_rect(0, 0, max(100.0 * share, 0.5), 10))


def _make_printable(value: object) -> object:
    """Make plain strings printable; markup is not changed. Jinja applies this to all output of a template."""
    return clean_line(value, LONGEST_TEXT) if isinstance(value, str) and not isinstance(value, Markup) else value


def _render_runs(pieces: tuple[Run, ...]) -> Markup:
    return Markup("").join(
        Markup("<code>{}</code>").format(run.text) if run.code else escape(run.text) for run in pieces
    )


def _render_prose(value: str) -> Markup:
    """Render the paragraphs and code blocks of a fix or a rule card."""
    return Markup("\n").join(
        Markup("<pre>{}</pre>").format("\n".join(block.lines))
        if isinstance(block, CodeBlock)
        else Markup("<p>{}</p>").format(_render_runs(block.runs))
        for block in split_blocks(value)
    )


def _make_breakable(path: str) -> Markup:
    """Return a path that may wrap after its slashes."""
    return Markup("/<wbr>").join(escape(part) for part in path.split("/"))
