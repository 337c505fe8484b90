"""What becomes of a comparison on the command line: a report or a document, and an exit code."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from frx_graph.analyzers.comparison.comparison import Comparison
from frx_graph.analyzers.comparison.matching import Winner
from frx_graph.cli.printing.report_output import write_report
from frx_graph.reports.advice.render import DEFAULT_TOP
from frx_graph.reports.advice.terminal import detect_terminal
from frx_graph.reports.kernels.compare_document import compare_document
from frx_graph.reports.kernels.compare_gaps import NextCommand
from frx_graph.reports.kernels.compare_report import render_comparison
from frx_graph.reports.render.document import to_json


def show_comparison(
    found: Comparison, again: NextCommand, *, as_document: bool, top: int = DEFAULT_TOP, output: Path | None = None
) -> int:
    """Write it; 0: B is not worse; 1: B is worse, or has regressions; 2: the evidence does not tell."""
    document = compare_document(found, again)
    terminal = detect_terminal(sys.stdout, os.environ)
    color = terminal.color and output is None and not as_document
    if as_document:
        text = json.dumps(to_json(document), indent=2, allow_nan=False) + "\n"
    else:
        text = render_comparison(document.result, top=top, width=terminal.width, color=color)
    write_report(text, output, color=color, for_people=not as_document)
    if found.verdict.winner is Winner.A or found.regressions:
        return 1
    return 2 if found.verdict.winner is Winner.UNKNOWN else 0
