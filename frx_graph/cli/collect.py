"""`frx collect`: run a program and record it in a bundle."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.analyzers.run.steps import Scope
from frx_graph.cli.printing.output import QuietOption, print_document, print_notice, print_report, print_text
from frx_graph.reports.advice.terminal import DEFAULT_TOP
from frx_graph.reports.render.document import to_json
from frx_graph.reports.runs.collect_report import CollectDocument, has_failed_early, render_collected
from frx_graph.reports.runs.run_report import render_run
from frx_graph.runs.collect.collection import collect_run
from frx_graph.runs.collect.run_settings import DEFAULT_INTERVAL_MS, DEFAULT_NAME, DEFAULT_OUT, RunSettings, make_run_id
from frx_graph.runs.workload.workload import STDERR, STDOUT

_FASTEST_MS, _SLOWEST_MS = 10, 24 * 3600 * 1000
"""Limits of the sampling interval: devices average utilisation over 1/6 s, and beyond a day only the first and last
samples remain."""


def collect(
    command: Annotated[list[str] | None, typer.Argument(help="The program: frx collect -- python train.py")] = None,
    name: Annotated[str, typer.Option(help="Name of the job in reports.")] = DEFAULT_NAME,
    out: Annotated[Path, typer.Option(help="Folder in which to create the run's folder.")] = DEFAULT_OUT,
    run_id: Annotated[str | None, typer.Option(help="Name of the run and its folder; default: a new name.")] = None,
    artifact_dir: Annotated[
        list[Path] | None,
        typer.Option(help="Import profiler traces from here at the end; may be repeated. Default: frx-job-run."),
    ] = None,
    no_profiler_import: Annotated[
        bool, typer.Option("--no-profiler-import", help="Import no traces from artifact folders.")
    ] = False,
    sample_interval_ms: Annotated[
        int,
        typer.Option(min=_FASTEST_MS, max=_SLOWEST_MS, help="Milliseconds between samples of devices and processes."),
    ] = DEFAULT_INTERVAL_MS,
    config: Annotated[Path | None, typer.Option(help="YAML file to merge into the bundle's run_config.yaml.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Add the files of `frx explain` to the bundle.")] = False,
    no_zip: Annotated[bool, typer.Option("--no-zip", help="Do not zip the bundle.")] = False,
    as_document: Annotated[
        bool, typer.Option("--json", help="The report as JSON; what the program prints goes to standard error.")
    ] = False,
    _quiet: QuietOption = False,
) -> None:
    """Run a program, sample devices meanwhile, and keep its record in a bundle that `frx analyze` reads. The exit code
    is the program's; 128 plus the signal's number if a signal ended it; 2 if it could not be started."""
    settings = RunSettings(
        command=tuple(command or ()),
        run_id=make_run_id() if run_id is None else run_id,
        name=name,
        out=out,
        artifacts=tuple(artifact_dir) if artifact_dir else None,
        import_profiles=not no_profiler_import,
        interval_ms=sample_interval_ms,
        config=config,
        explain=explain,
        zip=not no_zip,
    )
    sys.stdout.flush()
    collected = collect_run(settings, stdout=STDERR if as_document else STDOUT)
    document = CollectDocument.from_record(
        collected,
        bundle=str(settings.out / settings.run_id),
        zip=None if collected.archive is None else str(settings.out / collected.archive.name),
        result=None if collected.document is None else collected.document.result,
    )
    try:
        if as_document:
            print_document(to_json(document))
        else:
            print_report(render_collected(document), color=False)
            if document.result is not None and not has_failed_early(document):
                found = document.result
                read_from = ", ".join(source.path for source in found.sources)
                print_report("\n", color=False)
                print_text(partial(render_run, found, Scope.AUTO, read_from, top=DEFAULT_TOP))
    except OSError as error:
        # The reader is gone, or the disk is full: the exit code is still the program's. Python would write the rest of
        # the buffer again at exit, and report another failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print_notice(f"the report is not printed: {error.strerror or error}")
    raise typer.Exit(collected.end.shell_code)
