"""Several trials for people: a few lines for each, in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from rich.text import Text

from frx_graph.reports.render.plain_text import one_line
from frx_graph.reports.render.text_console import text_console
from frx_graph.reports.trials.trial_matrix_document import MatrixEntry, TrialMatrixDocument
from frx_graph.reports.trials.trial_report import STYLES

_WORD = 14


def render_matrix(document: TrialMatrixDocument, *, width: int, color: bool) -> str:
    """Verdict, what was tried of what, the gain, where, and what was recorded."""
    out, console = text_console(width, color, soft_wrap=True)
    for entry in document.trials:
        verdict = "error" if entry.trial is None else entry.trial.verdict
        named = (entry.target, shape_text(entry.shape), entry.dtype, entry.candidate)
        of = one_line(" ".join(filter(None, named)), 200)
        console.print(Text.assemble((f"{verdict:<{_WORD}}", STYLES.get(verdict, "bold red")), of))
        for told in _told(entry):
            for line in textwrap.wrap(one_line(told, 1000), width - _WORD):
                console.print(Text(f"{' ' * _WORD}{line}"))
    return out.getvalue()


def shape_text(shape: Mapping[str, int]) -> str:
    """As `--shape` takes it."""
    return ",".join(f"{name}={size}" for name, size in shape.items())


def _told(entry: MatrixEntry) -> list[str]:
    trial = entry.trial
    if trial is None:
        return [entry.error or ""]
    found = []
    if trial.stats is not None:
        found.append(f"ratio {trial.stats.ratio_median:.3f} of baseline over candidate")
    found.append(trial.reason)
    if trial.place is not None:
        found.append(f"on node {trial.place.address}, attempt {trial.place.attempt}")
        found += [f"lost before, and not counted: {lost}" for lost in trial.place.lost]
    return [*found, trial.decision]
