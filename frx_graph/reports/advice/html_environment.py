"""Set up Jinja for HTML: strings are made printable, then escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape

from frx_graph.reports.advice import wording
from frx_graph.reports.advice.copy_sites import KIND_WORDS, bar, copy_rows, kind_class
from frx_graph.reports.advice.layout_map import layout_class, layout_words
from frx_graph.reports.advice.roofline_plot import dtype_class
from frx_graph.reports.render import quantities
from frx_graph.reports.render.marked_text import CodeBlock, Run, blocks, lines, runs
from frx_graph.reports.render.svg import inline_bar, rect
from frx_graph.support.plain_text import one_line

LONGEST_TEXT: Final = 4000


def html_environment(templates: Mapping[str, str], root: Path) -> Environment:
    """An environment with these templates, by name; files are named relative to `root`."""
    environment = Environment(
        loader=DictLoader(dict(templates)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_printable,
    )
    environment.filters.update(_filters(root))
    return environment


def _filters(root: Path) -> dict[str, Callable[..., Any]]:
    return {
        "name": one_line,
        "text": lambda value: one_line(value, LONGEST_TEXT),
        "source": lambda value: Markup("\n").join(escape(line) for line in lines(value)),
        "marked": lambda value: _marked(runs(one_line(value, LONGEST_TEXT))),
        "prose": _prose,
        "copy_rows": copy_rows,
        "bytes": quantities.byte_count,
        "percent": quantities.percent,
        "plural": quantities.plural,
        "seconds": quantities.seconds,
        "flops": partial(quantities.rate, unit="FLOP/s"),
        "bandwidth": partial(quantities.rate, unit="B/s"),
        "location": lambda site: _breakable(wording.location(site, root)),
        "place": lambda site: _breakable(wording.place(site, root)),
        "impact": wording.impact,
        "frequency": wording.frequency,
        "strongest": wording.strongest_evidence,
        "layout_class": layout_class,
        "layout_words": layout_words,
        "kind_class": kind_class,
        "kind_words": lambda kind: KIND_WORDS[kind],
        "dtype_class": dtype_class,
        "bar": bar,
        "meter": meter,
    }


def meter(share: float) -> Markup:
    """Return a bar that is `share` full, 0..1."""
    return inline_bar("meter", rect(0, 0, max(100.0 * share, 0.5), 10))


def _printable(value: object) -> object:
    """Make plain strings printable; markup stays as it is. Jinja applies this to all that a template prints."""
    return one_line(value, LONGEST_TEXT) if isinstance(value, str) and not isinstance(value, Markup) else value


def _marked(pieces: tuple[Run, ...]) -> Markup:
    return Markup("").join(
        Markup("<code>{}</code>").format(run.text) if run.code else escape(run.text) for run in pieces
    )


def _prose(value: str) -> Markup:
    """Paragraphs and code blocks of a fix or of a rule card."""
    return Markup("\n").join(
        Markup("<pre>{}</pre>").format("\n".join(block.lines))
        if isinstance(block, CodeBlock)
        else Markup("<p>{}</p>").format(_marked(block.runs))
        for block in blocks(value)
    )


def _breakable(path: str) -> Markup:
    """A path that may be wrapped behind its slashes."""
    return Markup("/<wbr>").join(escape(part) for part in path.split("/"))
