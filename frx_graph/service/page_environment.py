"""Templates of the service's pages, with their filters."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from jinja2 import Environment

from frx_graph.analyzers.kernels.recommendations import get_label_title
from frx_graph.evidence.kernel_name import shorten_signature
from frx_graph.reports.advice.html import ADVICE_PARTS, read_template
from frx_graph.reports.advice.html_environment import make_environment
from frx_graph.reports.render import quantities
from frx_graph.reports.trials import event_text
from frx_graph.service.plots import draw_layout_bars, draw_step_bars
from frx_graph.support.plain_text import clean_line

_KERNEL_NAME = 60
PAGES: Final = (
    "base", "parts", "trace_parts", "upload", "problem", "advice", "trace", "run", "ncu", "ptx", "cuda", "compare",
    "decisions", "decision",
)  # fmt: skip


@cache
def get_page_environment() -> Environment:
    """Return the environment of the pages. Files keep their full names, since they come from other machines."""
    templates = {f"{name}.html.j2": read_page_file(f"{name}.html.j2") for name in PAGES}
    templates |= {name: read_template(name) for name in ADVICE_PARTS}
    environment = make_environment(templates, Path("/"))
    environment.filters.update(
        share=quantities.format_share,
        ms=quantities.format_ms,
        label=get_label_title,
        most=_list_largest,
        figure=quantities.format_quantity,
        side=lambda winner: {"a": "A", "b": "B"}.get(winner, str(winner)),
        kernel=_shorten_kernel,
        step_bars=draw_step_bars,
        layout_bars=draw_layout_bars,
        rewrites=event_text.format_rewrites,
        trial_gain=event_text.format_trial_gain,
        machine=event_text.format_machine,
        age=event_text.format_age,
        brief_reason=event_text.shorten_reason,
    )
    return environment


def read_page_file(name: str) -> str:
    """Return a template, style or script of the service."""
    return resources.files("frx_graph.service").joinpath("pages", name).read_text(encoding="utf-8")


def _shorten_kernel(name: str) -> str:
    return clean_line(shorten_signature(name), _KERNEL_NAME)


def _list_largest(counts: dict[object, int], number: int) -> list[tuple[object, int]]:
    return sorted(((key, count) for key, count in counts.items() if count), key=lambda item: -item[1])[:number]
