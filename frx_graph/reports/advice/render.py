"""One advice in any of the formats."""

from __future__ import annotations

from pathlib import Path

from frx_graph.advice import Advice
from frx_graph.reports.advice.advice_file import render_json
from frx_graph.reports.advice.cards import Cards, shipped_cards
from frx_graph.reports.advice.github import render_github
from frx_graph.reports.advice.html import render_html
from frx_graph.reports.advice.markdown import render_markdown
from frx_graph.reports.advice.report_format import Format
from frx_graph.reports.advice.sarif import render_sarif
from frx_graph.reports.advice.terminal import PIPED_WIDTH
from frx_graph.reports.advice.text import render_text
from frx_graph.reports.render.source_path import checkout_root

DEFAULT_TOP = 10


def render(
    advice: Advice,
    format: Format,
    *,
    top: int = DEFAULT_TOP,
    width: int = PIPED_WIDTH,
    color: bool = False,
    root: Path | None = None,
    cards: Cards | None = None,
) -> str:
    """The report, ending in a line break; the same advice always gives the same text.

    `top` limits the findings of text and Markdown; the other formats hold all of them. `width` and `color` are for
    text. Files are named relative to `root`, the current folder by default; in SARIF and annotations relative to the
    checkout that `root` lies in, which is what their readers expect. `cards` replace the rule cards of the package.
    """
    folder = Path.cwd() if root is None else root
    match format:
        case Format.TEXT:
            return render_text(advice, top=top, width=width, color=color, root=folder)
        case Format.JSON:
            return render_json(advice)
        case Format.MD:
            return render_markdown(advice, top=top, root=folder)
        case Format.GITHUB:
            return render_github(advice, root=checkout_root(folder))
        case Format.SARIF:
            return render_sarif(advice, root=checkout_root(folder), cards=shipped_cards() if cards is None else cards)
        case Format.HTML:
            return render_html(advice, root=folder, cards=shipped_cards() if cards is None else cards)
