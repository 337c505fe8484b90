"""Read the output of `ncu --csv`: a row for each metric of a launch, or a row for each launch, in bounded memory.

Other output may come before the table and between its rows: ncu's own lines (`==PROF==`), and those of the profiled
program. The first row of the table names the columns. With `--page details`, and with metrics named on the command
line, a row is one metric (long). With `--page raw`, and since Nsight Compute 2026.1, a row is one launch, with a row of
units between the names and the first launch (wide).
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ncu.launch import Dimensions, Form, KernelLaunch, NcuExport, NcuRule
from frx_graph.evidence.ncu.metrics import ScaledMetric, resolve_metric
from frx_graph.evidence.number_format import detect_common_format, is_missing, parse_number
from frx_graph.evidence.text_lines import TextLines, open_text_lines

EXPECTED = "an Nsight Compute CSV export"
_EXPORT_HINT = "write one with `ncu --csv --page raw` or `ncu -i report.ncu-rep --csv`"
_ID, _PROCESS, _KERNEL = "ID", "Process ID", "Kernel Name"
_METRIC, _UNIT, _VALUE = "Metric Name", "Metric Unit", "Metric Value"
_RULE = "Rule Name"
DEVICE_NAME = "device__attribute_display_name"
_LONGEST_ROW_LINES, _LONGEST_ROW = 1000, 1 << 20
"""Limits on lines and characters. A rule's text may span lines, but an unterminated quotation mark must not take the
rest of the file with it."""
_DIMENSIONS = re.compile(r"\(?\s*(\d{1,10})\s*[,x]\s*(\d{1,10})\s*[,x]\s*(\d{1,10})\s*\)?")
_INSTANCES = re.compile(r"(\S+)\s+\(.*\)", re.DOTALL)
_NO_COLUMN = -1
_IDENTITY = (_ID, _PROCESS, _KERNEL, "Device", "CC", "Grid Size", "Block Size")
"""The columns that identify the launch."""
_BEFORE_METRICS = (_KERNEL, "CC", "Device", "Grid Size", "Block Size", "Stream", "Context")
_RULE_PARTS = (_RULE, "Rule Type", "Rule Description", "Estimated Speedup", "Section Name", "Estimated Speedup Type")
_RANGE_COLUMNS = (":Push/Pop_Range:", ":Start/Stop_Range:")
_RANGE = re.compile(r'"([^"]*)"')
_FIELDS_BEHIND = 6
_DEEPEST = 256


def read_ncu_csv(path: Path, on_launch: Callable[[KernelLaunch], None]) -> NcuExport:
    """Call `on_launch` with each launch, in the file's order. Raises `EvidenceError`, with the line, if the file is not
    such an export, or is damaged."""
    with open_text_lines(path, EXPECTED) as lines:
        table = _CsvTable(path, lines)
        written = detect_common_format(table.iterate_values())
    with open_text_lines(path, EXPECTED) as lines:
        table = _CsvTable(path, lines)
        export = NcuExport(str(path), table.form, written)
        for launch in _LaunchReader(table, export).read():
            export.launches += 1
            on_launch(launch)
        export.foreign_lines = table.foreign_lines
    if not export.launches:
        raise EvidenceError(f"{path}: line {table.line}: a table without a launch", "was a kernel profiled at all?")
    return export


class _CsvTable:
    """The rows below the header, each as its cells."""

    def __init__(self, path: Path, lines: TextLines) -> None:
        self.path = path
        self.foreign_lines = 0
        self.line = 0
        """Line at which the last row begins."""
        self._lines = lines
        self.header = self._find_header()
        self.columns = {name: index for index, name in reversed(tuple(enumerate(self.header)))}
        self.form = Form.LONG if _METRIC in self.columns else Form.WIDE
        if self.form is Form.LONG and not {_UNIT, _VALUE} <= self.columns.keys():
            missing = ", ".join(sorted({_UNIT, _VALUE} - self.columns.keys()))
            raise EvidenceError(f"{path}: line {self.line}: a table of metrics without the column {missing}")
        begin = max((self.columns[name] + 1 for name in _BEFORE_METRICS if name in self.columns), default=0)
        wide = range(begin, len(self.header))
        self.value_columns: Sequence[int] = wide if self.form is Form.WIDE else [self.columns[_VALUE]]

    def iterate_values(self) -> Iterator[str]:
        """Return all cells that may be numbers."""
        for row in self.iterate_rows():
            yield from (row[column] for column in self.value_columns)

    def iterate_rows(self) -> Iterator[list[str]]:
        """Yield the cells of each row of a launch and, for a wide table, of the row of units."""
        read = (_ID, _PROCESS, _KERNEL, _METRIC, _UNIT, _VALUE)
        # In a long table, rows of rules are longer.
        long = 1 + max(self.columns[name] for name in read if name in self.columns)
        least = long if self.form is Form.LONG else len(self.header)
        first, kernel = self.columns[_ID] == 0, self.columns[_KERNEL]
        for line in self._lines:
            # Nsight Compute quotes all cells but empty ones at the end of a row, and usually there are no other quotes.
            # Nearly all rows are such, and `csv` takes twice as long for them.
            cells = line.rstrip("\r\n,")
            split = cells[1:-1].split('","')
            plain = len(split) >= least and 2 * len(split) == line.count('"') and cells[0] == cells[-1] == '"'
            if not plain and first and not self._begins_row(line):
                self.foreign_lines += bool(line.strip())
                continue
            self.line = self._lines.number
            for row in [split] if plain else self._parse_row(line):
                if len(row) < least:
                    if first and len(row) > 1 and row[0].isdigit():
                        # The file ends within a row.
                        raise self.make_error(f"a row of {len(row)} columns, expected {len(self.header)}")
                    self.foreign_lines += 1
                elif row[kernel] == _KERNEL:
                    raise self.make_error("a second table begins, expected one export a file")
                else:
                    yield row

    def make_error(self, what: str) -> EvidenceError:
        """Return the error that the last row is `what`."""
        return EvidenceError(f"{self.path}: line {self.line}: {what}", "export it again")

    def _find_header(self) -> list[str]:
        for line in self._lines:
            if _ID in line and _KERNEL in line:
                self.line = self._lines.number
                try:
                    cells = next(csv.reader([line], strict=True))
                except csv.Error:
                    cells = []
                if _ID in cells and _KERNEL in cells:
                    return [cell.strip() for cell in cells]
            self.foreign_lines += 1
        what = f"no row with the columns {_ID} and {_KERNEL} in {self._lines.number:,} lines, expected {EXPECTED}"
        raise EvidenceError(f"{self.path}: {what}", _EXPORT_HINT)

    def _begins_row(self, line: str) -> bool:
        """Return True if a row of the table begins on a line: it begins with the launch's number. The row of units has
        none; an editor that saved the file may have left quotation marks out."""
        begins = ('"', ",") if self.form is Form.WIDE else '"'
        return line.startswith(begins) or line[:1].isdigit()

    def _parse_row(self, line: str) -> list[list[str]]:
        lines = [line, *self._read_row_rest()] if line.count('"') % 2 else [line]
        try:
            return list(csv.reader(lines, strict=True))
        except csv.Error as error:
            raise self.make_error(f"no row of a table: {error}") from None

    def _read_row_rest(self) -> Iterator[str]:
        left = _LONGEST_ROW
        for line in self._lines:
            yield line
            left -= len(line)
            if line.count('"') % 2:
                return
            if self._lines.number - self.line > _LONGEST_ROW_LINES or left < 0:
                break
        raise self.make_error("a quotation mark that is not closed")


@dataclass(slots=True)
class _PartialLaunch:
    """The parts of a launch read so far, since its first row."""

    row: Sequence[str]
    line: int
    values: dict[str, float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    rules: list[NcuRule] = field(default_factory=list)
    device_name: str = ""


class _LaunchReader:
    def __init__(self, table: _CsvTable, export: NcuExport) -> None:
        self._table = table
        self._export = export
        self._known: dict[tuple[str, str], ScaledMetric | None] = {}
        self._identity, self._rule = (
            [table.columns.get(name, _NO_COLUMN) for name in names] for names in (_IDENTITY, _RULE_PARTS)
        )
        self._ranges = find_nvtx_columns(table.header)

    def read(self) -> Iterator[KernelLaunch]:
        """Yield each launch with its metrics, and note unreadable ones in the export."""
        return self._read_long() if self._table.form is Form.LONG else self._read_wide()

    def _read_long(self) -> Iterator[KernelLaunch]:
        """Yield the launches of a long table, whose rows are metrics."""
        columns = self._table.columns
        number, process, kernel = columns[_ID], columns.get(_PROCESS), columns[_KERNEL]
        name, unit, value = columns[_METRIC], columns[_UNIT], columns[_VALUE]
        rule = columns.get(_RULE, _NO_COLUMN)
        current: tuple[str, str, str] | None = None
        seen = _PartialLaunch([], 0)
        for row in self._table.iterate_rows():
            key = (row[number], "" if process is None else row[process], row[kernel])
            if key != current:
                if current is not None:
                    yield self._build_launch(seen)
                current, seen = key, _PartialLaunch(row, self._table.line)
            if row[name] == DEVICE_NAME:
                seen.device_name = row[value].strip()
            elif row[name]:
                read = self._resolve_metric(row[name], row[unit])
                if read is not None:
                    self._note_value(row[name], read, row[value], seen)
            elif 0 <= rule < len(row) and row[rule]:
                seen.rules.append(self._parse_rule(row))
        if current is not None:
            yield self._build_launch(seen)

    def _read_wide(self) -> Iterator[KernelLaunch]:
        """Yield the launches of a wide table, whose rows are launches."""
        number, header = self._table.columns[_ID], self._table.header
        device = self._table.columns.get(DEVICE_NAME)
        used: Sequence[tuple[int, str, ScaledMetric]] | None = None
        for row in self._table.iterate_rows():
            of_launch = bool(row[number].strip())
            if used is None:
                units = {} if of_launch else dict(enumerate(row))
                read = (
                    (column, self._resolve_metric(header[column], units.get(column, "")))
                    for column in self._table.value_columns
                )
                used = [(column, header[column], metric) for column, metric in read if metric is not None]
            if not of_launch:
                continue
            seen = _PartialLaunch(row, self._table.line, device_name="" if device is None else row[device].strip())
            for column, name, metric in used:
                self._note_value(name, metric, row[column], seen)
            yield self._build_launch(seen)

    def _note_value(self, name: str, read: ScaledMetric, text: str, seen: _PartialLaunch) -> None:
        if read.name in seen.values:
            return
        try:
            number = parse_number(text, self._export.number_format)
        except ValueError:
            if is_missing(text):
                return
            instances = _INSTANCES.fullmatch(text)
            if instances is None:
                self._export.note_value(f"{name}: {text!r}", self._table.line)
            else:
                self._note_value(name, read, instances[1], seen)
            return
        if not read.is_possible(number * read.factor):
            self._export.note_impossible(f"{name}: {text}", self._table.line)
            return
        seen.values[read.name] = number * read.factor
        seen.names[read.name] = name

    def _resolve_metric(self, name: str, unit: str) -> ScaledMetric | None:
        key = (name, unit)
        if key not in self._known:
            try:
                self._known[key] = resolve_metric(name, unit)
            except ValueError as error:
                self._known[key] = None
                self._export.note_unit(str(error), self._table.line)
        return self._known[key]

    def _parse_rule(self, row: Sequence[str]) -> NcuRule:
        name, kind, text, estimate, section, speedup_kind = _get_cells(row, self._rule)
        try:
            speedup = parse_number(estimate, self._export.number_format)
        except ValueError:
            speedup = None
        return NcuRule(name, kind, text, speedup, section, speedup_kind.lower())

    def _build_launch(self, seen: _PartialLaunch) -> KernelLaunch:
        row = seen.row
        number, process, kernel, device, capability, grid, block = _get_cells(row, self._identity)
        ranges = (parse_range_names(row[column]) for column in self._ranges if column < len(row))
        return KernelLaunch(
            number=number,
            process=process,
            kernel=kernel,
            device=device,
            compute_capability=capability,
            grid=_parse_dimensions(grid),
            block=_parse_dimensions(block),
            source=self._export.source,
            line=seen.line,
            values=seen.values,
            names=seen.names,
            rules=tuple(seen.rules),
            device_name=seen.device_name,
            ranges=tuple(chain.from_iterable(ranges)),
        )


def _get_cells(row: Sequence[str], columns: Sequence[int]) -> list[str]:
    """Return the cells of columns; empty where the table, or this row, lacks one."""
    return [row[column].strip() if 0 <= column < len(row) else "" for column in columns]


@functools.lru_cache(maxsize=1024)
def _parse_dimensions(text: str) -> Dimensions | None:
    found = _DIMENSIONS.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def find_nvtx_columns(header: Sequence[str]) -> tuple[int, ...]:
    """Return the columns of NVTX ranges: of those that threads push and pop, then of those that start and stop."""
    return tuple(
        index for mark in _RANGE_COLUMNS for index, name in enumerate(header) if mark in name and name.endswith(":Msg")
    )


@functools.lru_cache(maxsize=4096)
def parse_range_names(cell: str) -> tuple[str, ...]:
    """Return the names of the NVTX ranges in a cell, outermost first; other text is left out.

    A cell has a number, of the thread or the range, and, in quotation marks, each range that was open, outermost first:
    `58960  "<default domain>:forward:none:none:none:none:none:none"  "<default domain>:conv1:none:…"`. A range has its
    domain, its name, and six fields on payload, colour and message.
    """
    names = []
    for text in _RANGE.findall(cell)[:_DEEPEST]:
        _, colon, rest = text.partition(":")
        fields = rest.rsplit(":", _FIELDS_BEHIND)
        if colon and len(fields) == _FIELDS_BEHIND + 1 and fields[0].strip():
            names.append(fields[0].strip())
    return tuple(names)
