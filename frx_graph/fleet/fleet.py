"""Summarise many runs: find them, read them in several processes, and add them up."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from frx_graph.errors import EvidenceError
from frx_graph.fleet.messages import Answer, Failure, Fetch, ReadRun
from frx_graph.fleet.reader import Reader
from frx_graph.fleet.reader_pool import read_places
from frx_graph.fleet.run_tables import RowFiles, keep_parquet, open_database, write_parquet
from frx_graph.fleet.shown_source import ShownSource
from frx_graph.fleet.source import open_source
from frx_graph.fleet.totals import build_fleet_document
from frx_graph.reports.runs.fleet_document import FleetDocument
from frx_graph.support.supervisor.process import unwind_on_termination

Progress = Callable[[str], None]
Reading = Callable[[str], Generator[Answer]]
"""Yields the answers for all places of a source, read here or on a cluster."""
_TOLD_EVERY = 20
"""Runs between two progress lines."""


def read_locally(source: str, workers: int) -> Generator[Answer]:
    """Yield the answers for all places of `source`, read by this many processes."""
    opened: Any = open_source(source)
    return read_places(opened.list_places(), opened.read_place, [Reader() for _ in range(workers)])


def summarize_fleet(source: str, reading: Reading, progress: Progress, parquet: Path | None = None) -> FleetDocument:
    """Summarise all runs at `source`, a path or a URL that fsspec supports, and keep the tables in `parquet`.

    Raises `EvidenceError` if no run can be read, and `OptionError` if DuckDB is missing or the tables cannot be kept.
    Secrets in a URL are hidden in reports, tables and errors.
    """
    shown = ShownSource.from_source(source)
    try:
        with unwind_on_termination(), tempfile.TemporaryDirectory(prefix="frx-fleet-") as folder:
            return _summarize_runs(shown, partial(reading, source), Path(folder), progress, parquet)
    except OSError as error:
        said = f"{error.filename or shown.text}: {error.strerror or error}"
        raise EvidenceError(shown.hide(said), "TMPDIR chooses another folder for temporary files") from None
    except EvidenceError as error:
        raise EvidenceError(shown.hide(error.message), shown.hide(error.hint)) from None


def _summarize_runs(
    shown: ShownSource, reading: Callable[[], Generator[Answer]], folder: Path, progress: Progress, parquet: Path | None
) -> FleetDocument:
    with open_database(folder) as database:
        progress(f"looking for runs in {shown.text}")
        with RowFiles(folder) as rows, closing(reading()) as answers:
            for answer in answers:
                match answer:
                    case ReadRun():
                        rows.add_run(answer.rows)
                    case Failure():
                        rows.add_problem(shown.hide(answer.name), shown.hide(answer.reason))
                    case Fetch():
                        raise AssertionError("a fetched run is read before it is reported")
                if (rows.runs + rows.problems) % _TOLD_EVERY == 0:
                    progress(f"read {rows.runs:,} runs, {rows.problems:,} cannot be read")
        progress(f"adding up {rows.runs:,} runs")
        write_parquet(database, folder)
        document = build_fleet_document(database, shown.text)
    if not rows.runs:
        raise _explain_no_runs(document)
    if parquet is not None:
        keep_parquet(folder, parquet)
    return document


def _explain_no_runs(document: FleetDocument) -> EvidenceError:
    listed = document.bundles.problems_listed
    if not listed:
        return EvidenceError(f"{document.source}: there is no run", "frx collect -- python train.py makes one")
    more = f"; {document.bundles.problems - 1:,} more" if document.bundles.problems > 1 else ""
    return EvidenceError(f"{document.source}: no run can be read: {listed[0].place}: {listed[0].reason}{more}")
