"""Reads samples of devices, `gpu_metrics.csv`, and of a run's processes, `host_metrics.csv`.

The first is what `nvidia-smi --query-gpu=... --format=csv` writes: units behind names, in brackets, and behind values
or not; `[N/A]` for what a device does not tell. Columns are taken by name, in any order; those that are not known here
are passed over. A value that is not there is None. A row that is torn, as the last one of a run that was killed, or
that has no time, is left out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final, TypeVar

from frx_graph.errors import EvidenceError
from frx_graph.evidence.run.events import GpuSample

MOST_SAMPLES: Final = 2_000_000
"""Rows that are read, about 400 MB: a day of 20 samples a second."""
LONGEST_ROW: Final = 1 << 14
_PERCENT: Final = {"%": 1.0}
_MEMORY: Final = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_COUNT: Final = {"": 1.0}
_LARGEST: Final = 2.0**62
_COLUMN = re.compile(r"\s*([^\[\]]*?)\s*(?:\[([^\[\]]*)\])?\s*")
_VALUE = re.compile(r"([-+]?\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z%/]{0,10})")
_TIME: Final = "timestamp"
_SMI_TIME: Final = "%Y/%m/%d %H:%M:%S.%f"
"""Of the machine's clock on the wall: which zone that is it does not say."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Sample = TypeVar("Sample")


@dataclass(frozen=True, slots=True)
class HostSample:
    """The processes of a run at one moment. None: not recorded."""

    at_ns: int
    """Since the epoch."""
    processes: int | None = None
    cpu_pct: float | None = None
    """Since the sample before: 100 is one processor, all the time."""
    memory: int | None = None
    """Bytes that are resident, of all processes together: what they share counts for each."""


@dataclass(frozen=True, slots=True)
class _Column:
    """Where a value is, and what it counts in where it does not say so itself."""

    place: int
    unit: str
    units: Mapping[str, float]


def read_device_samples(path: Path) -> tuple[GpuSample, ...]:
    """The samples in the file at `path`, in its order; none where it has a header alone. Raises `EvidenceError` for one
    that cannot be read, has no times, or a unit that is not known."""

    def sample(at_ns: int, value: Callable[[str], float | None]) -> GpuSample:
        return GpuSample(
            at_ns=at_ns,
            device=_whole(value("index")),
            busy_pct=_percent(value("utilization.gpu")),
            memory_busy_pct=_percent(value("utilization.memory")),
            memory_used=_whole(value("memory.used")),
            memory_total=_whole(value("memory.total")),
        )

    units = {
        "index": _COUNT,
        "utilization.gpu": _PERCENT,
        "utilization.memory": _PERCENT,
        "memory.used": _MEMORY,
        "memory.total": _MEMORY,
    }
    return _read(path, units, sample)


def read_host_samples(path: Path) -> tuple[HostSample, ...]:
    """The same of a run's processes."""

    def sample(at_ns: int, value: Callable[[str], float | None]) -> HostSample:
        return HostSample(at_ns, _whole(value("processes")), value("cpu"), _whole(value("memory.rss")))

    return _read(path, {"processes": _COUNT, "cpu": _PERCENT, "memory.rss": _MEMORY}, sample)


def _read(
    path: Path,
    units: Mapping[str, Mapping[str, float]],
    sample: Callable[[int, Callable[[str], float | None]], Sample],
) -> tuple[Sample, ...]:
    # Opening a fifo waits for a writer that may never come.
    if path.exists() and not path.is_file():
        raise EvidenceError(f"{path}: is no regular file, expected samples as CSV")
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = _rows(file)
            columns = _columns(path, next(rows, (1, []))[1], units)
            found, unusable = [], 0
            for line, cells in rows:
                at_ns = _time(cells[columns[_TIME].place]) if columns[_TIME].place < len(cells) else None
                if at_ns is None:
                    unusable += 1
                    continue
                found.append(sample(at_ns, _values(path, line, cells, columns)))
                if len(found) == MOST_SAMPLES:
                    break
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from None
    if unusable and not found:
        raise EvidenceError(f"{path}: none of {unusable} rows has a time in the column {_TIME}")
    return tuple(found)


def _rows(file: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """Lines with their numbers, as cells. No value has a line break in it, and one without a comma needs no quotes."""
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


def _columns(path: Path, header: list[str], units: Mapping[str, Mapping[str, float]]) -> dict[str, _Column]:
    columns: dict[str, _Column] = {}
    for place, cell in enumerate(header):
        matched = _COLUMN.fullmatch(cell)
        name = matched[1].lower() if matched is not None else ""
        if name == _TIME or name in units:
            known = units.get(name, {})
            unit = (matched[2] if matched is not None else None) or next(iter(known), "")
            if known and unit not in known:
                raise EvidenceError(f"{path}:1: {name} is in {unit!r}, expected {' or '.join(known)}")
            columns.setdefault(name, _Column(place, unit, known))
    if _TIME not in columns:
        raise EvidenceError(f"{path}:1: has no column {_TIME}, expected the header of nvidia-smi --format=csv")
    return columns


def _values(path: Path, line: int, cells: list[str], columns: Mapping[str, _Column]) -> Callable[[str], float | None]:
    def value(name: str) -> float | None:
        column = columns.get(name)
        matched = _VALUE.fullmatch(cells[column.place]) if column is not None and column.place < len(cells) else None
        if column is None or matched is None:
            return None
        unit = matched[2] or column.unit
        if unit not in column.units:
            raise EvidenceError(f"{path}:{line}: {name} is in {unit!r}, expected {' or '.join(column.units)}")
        number = float(matched[1]) * column.units[unit]
        return number if 0 <= number < _LARGEST else None

    return value


def _time(text: str) -> int | None:
    try:
        when = datetime.strptime(text, _SMI_TIME) if "/" in text else datetime.fromisoformat(text)
        # Without a zone it is the machine's.
        since = when.astimezone(UTC) - _EPOCH
    except (ValueError, OverflowError, OSError):
        return None
    return (since.days * 86400 + since.seconds) * 10**9 + since.microseconds * 1000


def _percent(value: float | None) -> float | None:
    return value if value is not None and value <= 100 else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
