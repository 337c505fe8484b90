"""`frx fleet`: findings over thousands of runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from frx_graph.cli.options.engine_option import AddressOption, check_engine
from frx_graph.cli.printing.output import OnlyJsonOption, QuietOption, check_folder, print_result, show_stages
from frx_graph.engines.engine import EngineName
from frx_graph.errors import OptionError
from frx_graph.fleet.fleet import Reading, read_locally, summarize_fleet
from frx_graph.reports.runs.fleet_report import render_fleet

_TOP = 10


def fleet(
    source: Annotated[str, typer.Argument(help="A folder of runs, a zip of runs, or an fsspec URL.")],
    parquet: Annotated[Path | None, typer.Option(help="Keep the tables in this folder, as Parquet.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes that read; default: one per processor.")
    ] = None,
    engine: Annotated[
        EngineName, typer.Option("--engine", help="Where to read runs: on this machine or a Ray cluster.")
    ] = EngineName.LOCAL,
    address: AddressOption = None,
    top: Annotated[int, typer.Option(min=1, help="Show this many rules, call sites and cards.")] = _TOP,
    as_document: OnlyJsonOption = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report to this file.")] = None,
    _quiet: QuietOption = False,
) -> None:
    """Print which bottlenecks, layout rules and call sites many runs have, and what these cost in total. Exit code 0:
    nothing was found in any run; 1: something was; 2: an error, or no run can be read."""
    check_folder(output)
    check_engine(engine, address, None)
    if workers is not None and engine is not EngineName.LOCAL:
        raise OptionError("--workers is for runs read on this machine", "a cluster uses all its processors")
    with show_stages() as progress, _open_reader(engine, address, workers) as reading:
        document = summarize_fleet(source, reading, progress, parquet)
    print_result(document, partial(render_fleet, document, top=top), as_document=as_document, output=output)
    found = document.runs.with_bottleneck or document.runs.with_layout_findings
    raise typer.Exit(1 if found else 0)


@contextlib.contextmanager
def _open_reader(engine: EngineName, address: str | None, workers: int | None) -> Iterator[Reading]:
    if engine is EngineName.LOCAL:
        yield partial(read_locally, workers=workers or len(os.sched_getaffinity(0)))
        return
    # Imported late: it imports Ray.
    from frx_graph.engines.ray_cluster import connect_ray
    from frx_graph.fleet.ray_reading import read_on_cluster

    with connect_ray(address) as cluster:
        yield partial(read_on_cluster, cluster.ray)
