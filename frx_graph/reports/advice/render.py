"""Render advice in any format, and define the report object for users."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frx_graph.advice import Advice, Totals
from frx_graph.errors import OptionError
from frx_graph.records import Finding, Refusal
from frx_graph.reports.advice.advice_file import render_json, render_set
from frx_graph.reports.advice.github import render_github
from frx_graph.reports.advice.markdown import render_markdown
from frx_graph.reports.advice.sarif import render_sarif
from frx_graph.reports.advice.terminal import DEFAULT_TOP, PIPED_WIDTH, Format, detect_terminal
from frx_graph.reports.advice.text import render_text, render_totals
from frx_graph.reports.advice.wording import Cards, load_cards
from frx_graph.reports.render.source_path import find_checkout_root
from frx_graph.support.atomic_file import write_atomically
from frx_graph.support.plain_text import escape_surrogates


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
    """Return the report, ending in a line break. The same advice always gives the same text.

    `top` limits the findings of text and Markdown; the other formats hold all of them. `width` and `color` are for
    text. Files are named relative to `root`, the current folder by default; in SARIF and annotations relative to the
    checkout that contains `root`, as their readers expect. `cards` replace the rule cards of the package.
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
            return render_github(advice, root=find_checkout_root(folder))
        case Format.SARIF:
            return render_sarif(advice, root=find_checkout_root(folder), cards=load_cards() if cards is None else cards)
        case Format.HTML:
            # Jinja takes longer to import than a small report takes to make.
            from frx_graph.reports.advice.html import render_html

            return render_html(advice, root=folder, cards=load_cards() if cards is None else cards)


def render_several(
    advices: Sequence[Advice], format: Format, *, top: int, width: int = PIPED_WIDTH, color: bool = False
) -> str:
    """Return the reports on several targets as one. JSON is an `frx_advice_set_v1`, SARIF has a run for each target,
    and text ends with a table of all. Raises `OptionError` for HTML."""
    texts = [render(one, format, top=top, width=width, color=color) for one in advices]
    match format:
        case Format.JSON:
            return render_set(advices)
        case Format.SARIF:
            whole, *others = documents = [json.loads(text) for text in texts]
            for advice, document in zip(advices, documents, strict=True):
                # Code scanning tells the runs of one tool apart by this.
                document["runs"][0]["automationDetails"] = {"id": f"frx/{escape_surrogates(advice.target)}/"}
            whole["runs"] += [run for one in others for run in one["runs"]]
            return json.dumps(whole, indent=2, ensure_ascii=True, allow_nan=False) + "\n"
        case Format.TEXT:
            return "\n".join([*texts, render_totals(advices, width=width, color=color)])
        case Format.MD:
            return "\n".join(texts)
        case Format.GITHUB:
            return "".join(texts)
        case Format.HTML:
            raise OptionError("an HTML page is about one target", "render each by itself")


@dataclass(frozen=True)
class AdviceReport:
    """Ranked layout findings of a program. `print(report)` shows them; `advice` is the underlying record."""

    advice: Advice

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, highest severity first, then most bytes saved per step first."""
        return self.advice.findings

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The refusals, with reasons."""
        return self.advice.refusals

    @property
    def totals(self) -> Totals:
        """The step in numbers."""
        return self.advice.totals

    def render(self, format: Format | str = Format.TEXT, *, top: int = DEFAULT_TOP) -> str:
        """Return the report as text, json, html, md, sarif or github. Raises `OptionError` for another format."""
        terminal = detect_terminal(sys.stdout, os.environ)
        return render(self.advice, _format(format), top=top, width=terminal.width, color=False, root=Path.cwd())

    def save(self, path: str | Path, format: Format | str | None = None) -> Path:
        """Write the report; the format follows the file's ending (.json, .html, .md, .sarif, .txt) unless given.

        Raises `OptionError` for another format or ending, a missing folder, and a file that cannot be written.
        """
        path = Path(path)
        if format is None:
            ending = path.suffix.removeprefix(".").lower()
            format = {"txt": Format.TEXT, "htm": Format.HTML, "markdown": Format.MD}.get(ending, ending)
        text = self.render(format)
        if not path.absolute().parent.is_dir():
            raise OptionError(f"no such folder: {path.absolute().parent}", "create it first")
        try:
            write_atomically(path, text)
        except OSError as error:
            raise OptionError(f"cannot write {path}: {error.strerror}", "choose another file") from error
        return path

    def __str__(self) -> str:
        """The terminal report, without colour."""
        return self.render(Format.TEXT).rstrip("\n")

    def _repr_html_(self) -> str:
        from frx_graph.reports.advice.html import render_fragment

        return render_fragment(self.advice, root=Path.cwd(), cards=load_cards())


def _format(name: Format | str) -> Format:
    try:
        return Format(name)
    except ValueError:
        raise OptionError(f"no report format is called {name!r}", f"one of {', '.join(Format)}") from None
