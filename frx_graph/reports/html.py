"""The advice as one self-contained HTML file, and as a fragment for a notebook cell.

Nothing in the page is loaded from anywhere: styles, pictures and the small script are inline, and the page's own
content security policy lets no other script run. Jinja escapes all text; before that, every string that reaches the
page is made printable.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape

from frx_graph.advice import Advice
from frx_graph.reports import quantities, wording
from frx_graph.reports.cards import Cards, shipped_cards
from frx_graph.reports.comparison import agreement_counts, compare
from frx_graph.reports.copy_rows import copy_rows
from frx_graph.reports.copy_sites import KIND_WORDS, bar, copy_sites, kind_class
from frx_graph.reports.layout_map import layout_class, layout_map, layout_words
from frx_graph.reports.marked_text import CodeBlock, Run, blocks, runs
from frx_graph.reports.outcome import Outcome, copies_sentence, headline, outcome_of
from frx_graph.reports.plain_text import lines, one_line
from frx_graph.reports.refusal_groups import group_refusals
from frx_graph.reports.roofline import placed_points, roof_of
from frx_graph.reports.roofline_plot import NUMBERED, dtype_class, roofline_plot

WIDE, NARROW = 1000.0, 360.0
"""Units of the two versions of each picture: for a screen and for a phone, where text must not shrink with it."""
LONGEST_TEXT = 4000
FRAGMENT_FINDINGS = 10
_TEMPLATES = ("page.html.j2", "fragment.html.j2", "sections.html.j2", "pictures.html.j2")


def render_html(advice: Advice, *, root: Path, cards: Cards) -> str:
    """The whole page; files are named relative to `root`."""
    script = _source("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return _render("page.html.j2", advice, None, root, cards, script=Markup(script), script_hash=f"sha256-{digest}")


def html_fragment(advice: Advice, *, root: Path | None = None, cards: Cards | None = None) -> str:
    """The numbers, the first findings and the copies by call site, for the output of a notebook cell. No script.

    By default files are named relative to the current folder, and the rule cards are those of the package.
    """
    folder = Path.cwd() if root is None else root
    return _render("fragment.html.j2", advice, FRAGMENT_FINDINGS, folder, shipped_cards() if cards is None else cards)


def _render(template: str, advice: Advice, top: int | None, root: Path, cards: Cards, **page: object) -> str:
    roof = roof_of(advice.environment)
    points = placed_points(advice.graphs, roof)
    rows = None if advice.observed is None else compare(advice.copies, advice.observed)
    return (
        _environment(root)
        .get_template(template)
        .render(
            advice=advice,
            outcome=outcome_of(advice),
            Outcome=Outcome,
            headline=headline(advice),
            copies_sentence=copies_sentence(advice),
            machine=wording.machine(advice.environment),
            shown=advice.findings[:top],
            most_bytes=max((f.bytes_per_step or 0 for f in advice.findings), default=0),
            cards=cards,
            sites=copy_sites(advice.copies),
            kinds=[kind for kind in KIND_WORDS if any(copy.kind is kind for copy in advice.copies)],
            maps=[(graph, layout_map(graph, WIDE), layout_map(graph, NARROW)) for graph in advice.graphs],
            layouts=list(dict.fromkeys(span.layout for graph in advice.graphs for span in graph.spans)),
            roof=roof,
            points=points,
            numbered=NUMBERED,
            dtypes=list(dict.fromkeys([*(dtype for dtype, _ in roof.peaks), *(placed.dtype for placed in points)])),
            plots=(roofline_plot(roof, points, WIDE, 460.0), roofline_plot(roof, points, NARROW, 380.0)),
            comparison=rows,
            agreement=None if rows is None else agreement_counts(rows),
            refusals=group_refusals(advice.refusals, root),
            style=Markup(_source("report.css")),
            **page,
        )
    )


def _environment(root: Path) -> Environment:
    environment = Environment(
        loader=DictLoader({name: _source(name) for name in _TEMPLATES}),
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
    }


def _printable(value: object) -> object:
    """Applied to all that a template prints: plain strings lose what is not printable, markup stays as it is."""
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


@cache
def _source(name: str) -> str:
    return resources.files("frx_graph.reports").joinpath(name).read_text(encoding="utf-8")
