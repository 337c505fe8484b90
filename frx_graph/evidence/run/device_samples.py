"""Read samples of devices, `gpu_metrics.csv`.

`nvidia-smi --query-gpu=... --format=csv` writes this format: units in brackets after names, and sometimes after values;
`[N/A]` for values that a device does not report. Columns are found by name, in any order; unknown ones are ignored. A
missing value is None. A row without a time is left out, and so is the torn last row of a run that was killed.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

from frx_graph.errors import EvidenceError
from frx_graph.evidence.opening import open_evidence
from frx_graph.evidence.run.events import GpuSample

MOST_SAMPLES: Final = 2_000_000
"""Limit on rows, about 400 MB: a day of 20 samples a second."""
LONGEST_ROW: Final = 1 << 14
_PERCENT: Final = {"%": 1.0}
_MEMORY: Final = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_COUNT: Final = {"": 1.0}
_LARGEST: Final = 2.0**62
_COLUMN = re.compile(r"\s*([^\[\]]*?)\s*(?:\[([^\[\]]*)\])?\s*")
_VALUE = re.compile(r"([-+]?\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z%/]{0,10})")
_TIME: Final = "timestamp"
_SMI_TIME: Final = "%Y/%m/%d %H:%M:%S.%f"
"""Time on the machine's wall clock, with an unknown zone."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_UNITS: Final[Mapping[str, Mapping[str, float]]] = {
    "index": _COUNT,
    "utilization.gpu": _PERCENT,
    "utilization.memory": _PERCENT,
    "memory.used": _MEMORY,
    "memory.total": _MEMORY,
}


@dataclass(frozen=True, slots=True)
class _SampleColumn:
    """Index of a value in a row, and its unit unless the value has one."""

    place: int
    unit: str
    units: Mapping[str, float]


def read_device_samples(path: Path) -> tuple[GpuSample, ...]:
    """Return the samples in the file at `path`, in its order; none for a header alone.

    Raises `EvidenceError` for a file that cannot be read, has no times, or uses an unknown unit.
    """
    with (
        open_evidence(path, "samples as CSV") as raw,
        io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline="") as file,
    ):
        rows = _iterate_rows(file)
        columns = _find_columns(path, next(rows, (1, []))[1])
        found, unusable = [], 0
        for line, cells in rows:
            at_ns = _parse_time(cells[columns[_TIME].place]) if columns[_TIME].place < len(cells) else None
            if at_ns is None:
                unusable += 1
                continue
            found.append(_build_sample(at_ns, _make_value_getter(path, line, cells, columns)))
            if len(found) == MOST_SAMPLES:
                break
    if unusable and not found:
        raise EvidenceError(f"{path}: none of {unusable} rows has a time in the column {_TIME}")
    return tuple(found)


def _build_sample(at_ns: int, value: Callable[[str], float | None]) -> GpuSample:
    return GpuSample(
        at_ns=at_ns,
        device=_round_value(value("index")),
        busy_pct=_check_percent(value("utilization.gpu")),
        memory_busy_pct=_check_percent(value("utilization.memory")),
        memory_used=_round_value(value("memory.used")),
        memory_total=_round_value(value("memory.total")),
    )


def _iterate_rows(file: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines with their numbers, as cells. No value has a line break in it, and one without a comma needs no
    quotes."""
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


def _find_columns(path: Path, header: list[str]) -> dict[str, _SampleColumn]:
    columns: dict[str, _SampleColumn] = {}
    for place, cell in enumerate(header):
        matched = _COLUMN.fullmatch(cell)
        name = matched[1].lower() if matched is not None else ""
        if name == _TIME or name in _UNITS:
            known = _UNITS.get(name, {})
            unit = (matched[2] if matched is not None else None) or next(iter(known), "")
            if known and unit not in known:
                raise EvidenceError(f"{path}:1: {name} is in {unit!r}, expected {' or '.join(known)}")
            columns.setdefault(name, _SampleColumn(place, unit, known))
    if _TIME not in columns:
        raise EvidenceError(f"{path}:1: has no column {_TIME}, expected the header of nvidia-smi --format=csv")
    return columns


def _make_value_getter(
    path: Path, line: int, cells: list[str], columns: Mapping[str, _SampleColumn]
) -> Callable[[str], float | None]:
    def get_value(name: str) -> float | None:
        column = columns.get(name)
        matched = _VALUE.fullmatch(cells[column.place]) if column is not None and column.place < len(cells) else None
        if column is None or matched is None:
            return None
        unit = matched[2] or column.unit
        if unit not in column.units:
            raise EvidenceError(f"{path}:{line}: {name} is in {unit!r}, expected {' or '.join(column.units)}")
        number = float(matched[1]) * column.units[unit]
        return number if 0 <= number < _LARGEST else None

    return get_value


def _parse_time(text: str) -> int | None:
    try:
        when = datetime.strptime(text, _SMI_TIME) if "/" in text else datetime.fromisoformat(text)
        # Without a zone, it is the machine's zone.
        since = when.astimezone(UTC) - _EPOCH
    except (ValueError, OverflowError, OSError):
        return None
    return (since.days * 86400 + since.seconds) * 10**9 + since.microseconds * 1000


def _check_percent(value: float | None) -> float | None:
    return value if value is not None and value <= 100 else None


def _round_value(value: float | None) -> int | None:
    return None if value is None else round(value)
