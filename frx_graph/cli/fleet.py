"""`frx fleet`: the findings over thousands of runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.cli.output import OnlyJsonOption, QuietOption, stages
from frx_graph.cli.report_output import write_report
from frx_graph.errors import OptionError
from frx_graph.fleet.fleet import FleetOptions, summarise
from frx_graph.reports.fleet_document import as_json
from frx_graph.reports.fleet_report import render_fleet
from frx_graph.reports.terminal import detect_terminal

_TOP = 10


def fleet(
    source: Annotated[str, typer.Argument(help="A folder of runs, a zip of some, or a URL that fsspec knows.")],
    parquet: Annotated[Path | None, typer.Option(help="Keep the tables in this folder, as Parquet.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes that read; one for each processor if it is left out.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Show this many rules, call sites and cards.")] = _TOP,
    as_document: OnlyJsonOption = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report to this file.")] = None,
    _quiet: QuietOption = False,
) -> None:
    """Print which bottlenecks, layout rules and call sites many runs have, and what these cost in total. Exit code 0:
    nothing was found in any run; 1: something was; 2: an error, or no run can be read."""
    if output is not None and not output.absolute().parent.is_dir():
        raise OptionError(f"no such folder: {output.absolute().parent}", "create it first")
    options = FleetOptions(workers or len(os.sched_getaffinity(0)), parquet)
    with stages() as progress:
        document = summarise(source, options, progress)
    terminal = detect_terminal(sys.stdout, os.environ)
    color = terminal.color and output is None and not as_document
    if as_document:
        text = json.dumps(as_json(document), indent=2, allow_nan=False) + "\n"
    else:
        text = render_fleet(document, top=top, width=terminal.width, color=color)
    write_report(text, output, color=color, for_people=not as_document)
    found = document.runs.with_bottleneck or document.runs.with_layout_findings
    raise typer.Exit(1 if found else 0)
