"""The tables of a fleet: lines of JSON while runs are read, then Parquet.

`runs` has a row for each run that was read, `labels`, `findings` and `advice` those of it, by its number, `run`;
`problems` what could not be read.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

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
"""That a run has rows in."""
_MEMORY: Final = "256MiB"
_ROW_GROUP: Final = 8192
"""Rows that are in memory together when a table is written: with the longest names that a row may have, some 30 MB."""
_TYPES: Final = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}


class RowFiles:
    """Lines of JSON in a folder, a file for each table. A context manager."""

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
        """The rows of a run, each an object of JSON: its number is put in front."""
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
    """The columns of a table, by their types in SQL."""
    hints = typing.get_type_hints(row)
    return {"run": "BIGINT", **{field.name: _get_sql_type(hints[field.name]) for field in dataclasses.fields(row)}}


def _get_sql_type(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        (hint,) = (each for each in typing.get_args(hint) if each is not types.NoneType)
    return _TYPES[hint]


@contextmanager
def open_database(folder: Path) -> Iterator[DuckDBPyConnection]:
    """A database that takes little memory, and puts what does not fit into `folder`. Raises `OptionError` where there
    is no DuckDB, `EvidenceError` where it fails."""
    try:
        import duckdb
    except ImportError:
        raise OptionError("frx fleet needs DuckDB, which is not installed", "pip install 'frx-graph[fleet]'") from None
    settings = {
        "memory_limit": _MEMORY,
        "temp_directory": str(folder),
        # Adding up takes a small part of the time of reading.
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
    """From the lines of JSON in a folder to `runs.parquet` and the others beside them, which views of these names read
    from there on."""
    for table, row in ROWS.items():
        lines, parquet = folder / f"{table}.jsonl", folder / f"{table}.parquet"
        database.read_json(str(lines), columns=list_columns(row), format="newline_delimited").write_parquet(
            str(parquet), compression="zstd", row_group_size=_ROW_GROUP
        )
        lines.unlink()
        database.read_parquet(str(parquet)).create_view(table)


def keep_parquet(folder: Path, target: Path) -> None:
    """Move the Parquet files to where the user wants them. Raises `OptionError` where that cannot be done."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        for table in ROWS:
            shutil.move(folder / f"{table}.parquet", target / f"{table}.parquet")
    except OSError as error:
        raise OptionError(f"cannot write to {target}: {error.strerror or error}", "choose another --parquet") from None
