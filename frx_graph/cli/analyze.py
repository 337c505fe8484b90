"""`frx analyze`: the layout findings that a torch.profiler trace alone can support."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from frx_graph.cli.report_output import ReportOptions, emit
from frx_graph.progress import stages
from frx_graph.reports.render import DEFAULT_TOP
from frx_graph.reports.report_format import Format
from frx_graph.trace_advice import analyze_trace


def analyze(
    trace: Annotated[
        Path, typer.Option("--trace", help="What torch.profiler's export_chrome_trace wrote: profile.json[.gz].")
    ],
    model: Annotated[str | None, typer.Option(help="Name of the program in the report; the file's otherwise.")] = None,
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TEXT,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report to this file.")] = None,
    select: Annotated[list[str] | None, typer.Option(help="Only these rules: FRX001, FRX00, hidden_copy.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Leave these rules out.")] = None,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit 0 even if there are findings.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Explain this many findings in full.")] = DEFAULT_TOP,
) -> None:
    """Print the layout problems that a profiler trace shows."""
    options = ReportOptions(
        format=format,
        output=output,
        top=top,
        select=select or (),
        ignore=ignore or (),
        exit_zero=exit_zero,
    )
    options.check()
    with stages() as progress:
        progress(f"reading {trace}")
        advice = analyze_trace(trace, model)
    raise typer.Exit(emit(advice, options))
