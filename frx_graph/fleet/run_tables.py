"""Keep the tables of a fleet: lines of JSON while runs are read, then Parquet.

`runs` has a row for each run that was read. `labels`, `findings` and `advice` have that run's rows, by its number
`run`; `problems` lists what could not be read.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from frx_graph.errors import EvidenceError, OptionError, summarize_error
from frx_graph.fleet.rows import AdviceRow, FindingRow, LabelRow, ProblemRow, RunRow
from frx_graph.reports.render.source_path import cut_path
from frx_graph.support.plain_text import NAME_LIMIT, clean_line

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS: Final[Mapping[str, type]] = {
    "runs": RunRow,
    "labels": LabelRow,
    "findings": FindingRow,
    "advice": AdviceRow,
    "problems": ProblemRow,
}
TABLES: Final = ("runs", "labels", "findings", "advice")
"""Tables with rows of a run."""
_MEMORY: Final = "256MiB"
_ROW_GROUP: Final = 8192
"""Rows in memory at once while a table is written: with the longest names that a row may have, about 30 MB."""
_TYPES: Final = {"str": "VARCHAR", "int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN"}


class RowFiles:
    """Lines of JSON in a folder, one file per table. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened = ExitStack()
        self._files: dict[str, IO[bytes]] = {}
        self.runs = 0
        self.problems = 0

    def __enter__(self) -> RowFiles:
        for table in ROWS:
            self._files[table] = self._opened.enter_context((self._folder / f"{table}.jsonl").open("wb"))
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def add_run(self, rows: Mapping[str, list[bytes]]) -> None:
        """Add the rows of a run, each a JSON object; its number is put first."""
        head = b'{"run":%d,' % self.runs
        for table, lines in rows.items():
            self._files[table].writelines(head + line[1:] + b"\n" for line in lines)
        self.runs += 1

    def add_problem(self, place: str, reason: str) -> None:
        """Add a run that could not be read."""
        row = {"run": self.problems, "place": cut_path(place, NAME_LIMIT), "reason": clean_line(reason, 2 * NAME_LIMIT)}
        self._files["problems"].write(json.dumps(row).encode() + b"\n")
        self.problems += 1


def list_columns(row: type) -> dict[str, str]:
    """Return the columns of a table with their SQL types."""
    types = {field.name: _TYPES[str(field.type).removesuffix(" | None")] for field in dataclasses.fields(row)}
    return {"run": "BIGINT", **types}


@contextmanager
def open_database(folder: Path) -> Iterator[DuckDBPyConnection]:
    """Open a database that uses little memory and spills into `folder`. Raises `OptionError` if DuckDB is missing, and
    `EvidenceError` if a query fails."""
    try:
        import duckdb
    except ImportError:
        raise OptionError("frx fleet needs DuckDB, which is not installed", "pip install 'frx-graph[fleet]'") from None
    settings = {
        "memory_limit": _MEMORY,
        "temp_directory": str(folder),
        # Adding up takes little time compared with reading.
        "threads": 1,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    with duckdb.connect() as database:
        try:
            for name, value in settings.items():
                database.execute(f"SET {name} = $1", [value])
            yield database
        except duckdb.Error as error:
            raise EvidenceError(
                f"the tables cannot be added up: {summarize_error(error)}", "is the disk full?"
            ) from None


def write_parquet(database: DuckDBPyConnection, folder: Path) -> None:
    """Convert the lines of JSON in a folder to `runs.parquet` and the others, and create views of these names."""
    for table, row in ROWS.items():
        lines, parquet = folder / f"{table}.jsonl", folder / f"{table}.parquet"
        database.read_json(str(lines), columns=list_columns(row), format="newline_delimited").write_parquet(
            str(parquet), compression="zstd", row_group_size=_ROW_GROUP
        )
        lines.unlink()
        database.read_parquet(str(parquet)).create_view(table)


def keep_parquet(folder: Path, target: Path) -> None:
    """Move the Parquet files to the user's folder. Raises `OptionError` if that fails."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        for table in ROWS:
            shutil.move(folder / f"{table}.parquet", target / f"{table}.parquet")
    except OSError as error:
        raise OptionError(f"cannot write to {target}: {error.strerror or error}", "choose another --parquet") from None
