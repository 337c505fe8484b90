"""The advice as one self-contained HTML file, and as a fragment for a notebook cell.

The page loads nothing: styles, pictures and the small script are inline, and the page's content security policy blocks
any other script.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from pathlib import Path

from markupsafe import Markup

from frx_graph.advice import Advice
from frx_graph.reports.advice import wording
from frx_graph.reports.advice.comparison import compare, count_agreements
from frx_graph.reports.advice.copy_sites import KIND_WORDS, group_by_site
from frx_graph.reports.advice.grouping import group_findings
from frx_graph.reports.advice.html_environment import make_environment
from frx_graph.reports.advice.layout_map import draw_layout_map
from frx_graph.reports.advice.roofline import build_roof, place_points
from frx_graph.reports.advice.roofline_plot import NUMBERED, draw_roofline

WIDE, NARROW = 1000.0, 360.0
"""Width of each picture's two versions: for a screen, and for a phone, on which text must not shrink."""
FRAGMENT_FINDINGS = 10
ADVICE_PARTS = ("sections.html.j2", "pictures.html.j2")
"""Templates with macros for the parts of advice, for `build_context`."""
_TEMPLATES = ("page.html.j2", "fragment.html.j2", *ADVICE_PARTS)


def render_html(advice: Advice, *, root: Path, cards: wording.Cards) -> str:
    """Return the whole page; files are named relative to `root`."""
    script = read_template("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return _render("page.html.j2", advice, None, root, cards, script=Markup(script), script_hash=f"sha256-{digest}")


def render_fragment(advice: Advice, *, root: Path, cards: wording.Cards) -> str:
    """Return the numbers, first findings and copies by call site as the output of a notebook cell, without a script."""
    return _render("fragment.html.j2", advice, FRAGMENT_FINDINGS, root, cards)


def _render(template: str, advice: Advice, top: int | None, root: Path, cards: wording.Cards, **page: object) -> str:
    environment = make_environment({name: read_template(name) for name in _TEMPLATES}, root)
    style = Markup(read_template("report.css"))
    return environment.get_template(template).render(style=style, **build_context(advice, top, root, cards), **page)


def build_context(advice: Advice, top: int | None, root: Path, cards: wording.Cards) -> dict[str, object]:
    """Return the context of the templates of advice, `sections.html.j2` and `pictures.html.j2` among them."""
    roof = build_roof(advice.environment, advice.graphs)
    points = place_points(advice.graphs, roof)
    rows = None if advice.observed is None else compare(advice.copies, advice.observed)
    grouped = group_findings(advice.findings)
    shown = grouped.groups[:top]
    return {
        "advice": advice,
        "outcome": wording.classify_outcome(advice),
        "Outcome": wording.Outcome,
        "headline": wording.format_headline(advice),
        "copies_sentence": wording.describe_copies(advice),
        "machine": wording.describe_machine(advice.environment),
        "shown": shown,
        "hidden": len(grouped.groups) - len(shown),
        "worthless": grouped.worthless,
        "most_bytes": max((f.bytes_per_step or 0 for f in advice.findings), default=0),
        "cards": cards,
        "sites": group_by_site(advice.copies),
        "kinds": [kind for kind in KIND_WORDS if any(copy.kind is kind for copy in advice.copies)],
        "maps": [(graph, draw_layout_map(graph, WIDE), draw_layout_map(graph, NARROW)) for graph in advice.graphs],
        "layouts": list(dict.fromkeys(span.layout for graph in advice.graphs for span in graph.spans)),
        "roof": roof,
        "points": points,
        "numbered": NUMBERED,
        "dtypes": list(dict.fromkeys([*(dtype for dtype, _ in roof.peaks), *(placed.dtype for placed in points)])),
        "plots": (draw_roofline(roof, points, WIDE, 460.0), draw_roofline(roof, points, NARROW, 380.0)),
        "comparison": rows,
        "agreement": None if rows is None else count_agreements(rows),
        "refusals": wording.group_refusals(advice.refusals, root),
    }


@cache
def read_template(name: str) -> str:
    """Return a template, style or script of the reports, by file name."""
    return resources.files("frx_graph.reports.render").joinpath(name).read_text(encoding="utf-8")
