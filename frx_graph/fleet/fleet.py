"""What many runs have in common: found, read by several processes, added up."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from frx_graph.errors import EvidenceError
from frx_graph.fleet.reader import Answer, Failure, Fetch, Reader, ReadRun
from frx_graph.fleet.reader_pool import read_places
from frx_graph.fleet.remote import RemotePlace, RemoteStore, is_url
from frx_graph.fleet.run_tables import RowFiles, database_in, keep_parquet, write_parquet
from frx_graph.fleet.search import Place, local_places
from frx_graph.fleet.totals import fleet_document
from frx_graph.reports.fleet_document import FleetDocument
from frx_graph.termination import cleaned_up_when_terminated

Progress = Callable[[str], None]
_TOLD_EVERY = 20
"""Runs between two lines of progress."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """How runs are read: by how many processes, and the folder in which the tables stay, if any."""

    workers: int
    parquet: Path | None = None


def summarise(source: str, options: FleetOptions, progress: Progress) -> FleetDocument:
    """What all runs at `source` have, a path or a URL that fsspec knows. Raises `EvidenceError` where there is none
    that can be read, `OptionError` where DuckDB is missing or the tables cannot be kept."""
    try:
        with cleaned_up_when_terminated(), tempfile.TemporaryDirectory(prefix="frx-fleet-") as folder:
            return _summarised(source, options, Path(folder), progress)
    except OSError as error:
        said = f"{error.filename or source}: {error.strerror or error}"
        raise EvidenceError(said, "TMPDIR chooses another folder for what is kept meanwhile") from None


def _summarised(source: str, options: FleetOptions, folder: Path, progress: Progress) -> FleetDocument:
    with database_in(folder) as database:
        progress(f"looking for runs in {source}")
        with RowFiles(folder) as rows:
            for answer in _answers(source, options.workers):
                _take(answer, rows)
                if (rows.runs + rows.problems) % _TOLD_EVERY == 0:
                    progress(f"read {rows.runs:,} runs, {rows.problems:,} cannot be read")
        progress(f"adding up {rows.runs:,} runs")
        write_parquet(database, folder)
        document = fleet_document(database, source)
    if not rows.runs:
        raise _nothing(source, document)
    if options.parquet is not None:
        keep_parquet(folder, options.parquet)
    return document


def _take(answer: Answer, rows: RowFiles) -> None:
    match answer:
        case ReadRun():
            rows.add_run(answer.rows)
        case Failure():
            rows.add_problem(answer.name, answer.reason)
        case Fetch():
            raise AssertionError("what is fetched is read before it is told")


def _answers(source: str, workers: int) -> Iterator[Answer]:
    readers = [Reader() for _ in range(workers)]
    if not is_url(source):
        return read_places(local_places(Path(source)), _local, readers)
    store = RemoteStore(source)
    if (local := store.local) is not None:
        return read_places(local_places(local), _local, readers)

    def remote(place: RemotePlace, reader: Reader) -> Iterator[Answer]:
        return store.answers(place, reader)

    return read_places(store.places(), remote, readers)


def _local(place: Place, reader: Reader) -> Iterator[Answer]:
    if isinstance(place, Failure):
        yield place
    else:
        yield from reader.read(place)


def _nothing(source: str, document: FleetDocument) -> EvidenceError:
    listed = document.bundles.problems_listed
    if not listed:
        return EvidenceError(f"{source}: there is no run", "frx collect -- python train.py makes one")
    more = f"; {document.bundles.problems - 1:,} more" if document.bundles.problems > 1 else ""
    return EvidenceError(f"{source}: no run can be read: {listed[0].place}: {listed[0].reason}{more}")
