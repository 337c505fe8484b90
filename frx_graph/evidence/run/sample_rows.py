"""Read samples that were taken beside a program, as CSV.

`nvidia-smi --query-gpu=... --format=csv` writes this format: units in brackets after names, and sometimes after values;
`[N/A]` for values that are not known. Columns are found by name, in any order; unknown ones are ignored. A missing
value is None. A row without a time is left out, and so is the torn last row of a run that was killed.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from frx_graph.errors import EvidenceError
from frx_graph.evidence.opening import open_evidence

MOST_SAMPLES: Final = 2_000_000
"""Limit on rows, about 400 MB: a day of 20 samples a second."""
LONGEST_ROW: Final = 1 << 14
_LARGEST: Final = 1 << 62
_COLUMN = re.compile(r"\s*([^\[\]]*?)\s*(?:\[([^\[\]]*)\])?\s*")
_VALUE = re.compile(r"([-+]?\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z%/]{0,10})")
_TIME: Final = "timestamp"
_SMI_TIME: Final = "%Y/%m/%d %H:%M:%S.%f"
"""Time on the machine's wall clock, with an unknown zone."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A column: the field that it fills, and its units with their factors. The first is meant if none is written."""

    field: str
    units: Mapping[str, float]
    most: float = _LARGEST
    """A larger value is left out."""
    whole: bool = True
    """True: rounded to a whole number."""


BYTES: Final[Mapping[str, float]] = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
COUNT: Final[Mapping[str, float]] = {"": 1.0}
PERCENT: Final[Mapping[str, float]] = {"%": 1.0}


def read_sample_rows(path: Path, quantities: Mapping[str, Quantity]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the time of each sample in the file at `path`, in nanoseconds since 1970, and its fields; none for a header
    alone.

    Raises `EvidenceError` for a file that cannot be read, has no times, or uses an unknown unit.
    """
    with (
        open_evidence(path, "samples as CSV") as raw,
        io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline="") as file,
    ):
        rows = _iterate_rows(file)
        columns = _find_columns(path, next(rows, (1, []))[1], quantities)
        found = unusable = 0
        for line, cells in rows:
            place, _ = columns[_TIME]
            at_ns = _parse_time(cells[place]) if place < len(cells) else None
            if at_ns is None:
                unusable += 1
                continue
            yield at_ns, _parse_values(path, line, cells, columns, quantities)
            found += 1
            if found == MOST_SAMPLES:
                break
    if unusable and not found:
        raise EvidenceError(f"{path}: none of {unusable} rows has a time in the column {_TIME}")


def _iterate_rows(file: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines with their numbers, as cells. No value has a line break in it."""
    number = 0
    while line := file.readline(LONGEST_ROW):
        number += 1
        if not line.endswith("\n"):
            return
        try:
            cells = next(csv.reader([line], skipinitialspace=True), [])
        except csv.Error:
            continue
        if cells:
            yield number, [cell.strip() for cell in cells]


def _find_columns(path: Path, header: list[str], quantities: Mapping[str, Quantity]) -> dict[str, tuple[int, str]]:
    """Return the place of each column in a row, and the unit of values that are written without one."""
    columns: dict[str, tuple[int, str]] = {}
    for place, cell in enumerate(header):
        matched = _COLUMN.fullmatch(cell)
        name = matched[1].lower() if matched is not None else ""
        if matched is not None and (name == _TIME or name in quantities):
            known = quantities[name].units if name in quantities else {}
            unit = matched[2] or next(iter(known), "")
            if known and unit not in known:
                raise EvidenceError(f"{path}:1: {name} is in {unit!r}, expected {' or '.join(known)}")
            columns.setdefault(name, (place, unit))
    if _TIME not in columns:
        raise EvidenceError(f"{path}:1: has no column {_TIME}, expected a header as nvidia-smi --format=csv writes it")
    return columns


def _parse_values(
    path: Path,
    line: int,
    cells: list[str],
    columns: Mapping[str, tuple[int, str]],
    quantities: Mapping[str, Quantity],
) -> dict[str, Any]:
    values: dict[str, float] = {}
    for name, quantity in quantities.items():
        place, unit = columns.get(name, (len(cells), ""))
        matched = _VALUE.fullmatch(cells[place]) if place < len(cells) else None
        if matched is None:
            continue
        unit = matched[2] or unit
        if unit not in quantity.units:
            raise EvidenceError(f"{path}:{line}: {name} is in {unit!r}, expected {' or '.join(quantity.units)}")
        number = float(matched[1]) * quantity.units[unit]
        if 0 <= number <= quantity.most:
            values[quantity.field] = round(number) if quantity.whole else number
    return values


def _parse_time(text: str) -> int | None:
    try:
        when = datetime.strptime(text, _SMI_TIME) if "/" in text else datetime.fromisoformat(text)
        # Without a zone, it is the machine's zone.
        since = when.astimezone(UTC) - _EPOCH
    except (ValueError, OverflowError, OSError):
        return None
    return (since.days * 86400 + since.seconds) * 10**9 + since.microseconds * 1000
