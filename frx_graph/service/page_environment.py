"""The templates of the service's pages, with the filters that they use."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from jinja2 import Environment

from frx_graph.analyzers.kernels.recommendations import label_title
from frx_graph.reports.advice.html import ADVICE_PARTS, report_source
from frx_graph.reports.advice.html_environment import html_environment
from frx_graph.reports.render import quantities
from frx_graph.service.plots import layout_bars, step_bars

PAGES: Final = (
    "base", "parts", "trace_parts", "upload", "problem", "advice", "trace", "run", "ncu", "ptx", "cuda", "compare",
    "decisions", "decision",
)  # fmt: skip


@cache
def page_environment() -> Environment:
    """Return the environment of the pages. Files keep their names, since none is from this machine."""
    templates = {f"{name}.html.j2": page_source(f"{name}.html.j2") for name in PAGES}
    templates |= {name: report_source(name) for name in ADVICE_PARTS}
    environment = html_environment(templates, Path("/"))
    environment.filters.update(
        share=quantities.share_percent,
        ms=quantities.milliseconds,
        label=label_title,
        most=_most,
        figure=quantities.quantity,
        side=lambda winner: {"a": "A", "b": "B"}.get(winner, str(winner)),
        step_bars=step_bars,
        layout_bars=layout_bars,
    )
    return environment


def page_source(name: str) -> str:
    """A template, style or script of the service."""
    return resources.files("frx_graph.service").joinpath("pages", name).read_text(encoding="utf-8")


def _most(counts: dict[object, int], number: int) -> list[tuple[object, int]]:
    """The largest of them."""
    return sorted(((key, count) for key, count in counts.items() if count), key=lambda item: -item[1])[:number]
