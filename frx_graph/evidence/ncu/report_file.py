"""Read binary reports (`.ncu-rep`) into the same launches as the CSV reader does from their export.

NVIDIA's reader, from the optional package `ncu-report`, runs in a separate process (`report_process.py`), with limits
of time and memory. The file is checked before, the number of launches after. Numbers have full precision; an export
shows two decimals.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ncu.launch import Dimensions, Form, KernelLaunch, NcuExport, NcuRule
from frx_graph.evidence.ncu.metrics import resolve_metric
from frx_graph.evidence.ncu.report_blocks import count_results
from frx_graph.support.supervisor.run import RunEnding, run_program

INSTALL_HINT = "pip install 'frx-graph[ncu]', or export it: `ncu -i report.ncu-rep --csv --page raw`"
_DAMAGED_HINT = "it is damaged: export it where it was made"
_SECONDS, _SECONDS_PER_BYTE = 60.0, 1e-6
"""Measured: 0.05 s for each megabyte."""
_MOST_MEMORY, _MEMORY_PER_BYTE = 1 << 30, 128
"""Limit in bytes; measured: 51 per byte of a report."""
_LONGEST_LINE = 64 << 20
_LINK = re.compile(r"@(section|url|source)?:([^@:]*):([^@]*)@")
"""References in messages to a section (`@section:Identifier:Name@`) or a page (`@url:Name:address@`)."""


def _take_whole(value: object) -> object:
    """Return an integer that is stored as a floating-point number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Whole = Annotated[int, BeforeValidator(_take_whole), Field(ge=0)]


class _LaunchLine(BaseModel):
    """A line from the process that reads the report."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    kernel: str
    device: str
    device_name: str
    capability: tuple[_Whole | None, _Whole | None]
    grid: tuple[_Whole | None, _Whole | None, _Whole | None]
    block: tuple[_Whole | None, _Whole | None, _Whole | None]
    metric_count: int
    metrics: tuple[tuple[str, str, float], ...]
    ranges: tuple[str, ...]
    rules: tuple[NcuRule, ...]


def read_ncu_report(path: Path, on_launch: Callable[[KernelLaunch], None]) -> NcuExport:
    """Call `on_launch` with each launch, in the report's order. Raises `EvidenceError` if the report is damaged or
    takes too long, or if `ncu-report` is not installed."""
    expected = count_results(path)
    if importlib.util.find_spec("ncu_report") is None:
        raise EvidenceError(f"{path}: reading an Nsight Compute report needs ncu-report", INSTALL_HINT)
    if not expected:
        raise EvidenceError(f"{path}: a report without a launch", "was a kernel profiled at all?")
    export = NcuExport(str(path), Form.REPORT)
    with tempfile.TemporaryFile(prefix="frx-ncu-") as lines:
        _run_reader(path, lines)
        lines.seek(0)
        while line := lines.readline(_LONGEST_LINE):
            export.launches += 1
            on_launch(_build_launch(_parse_line(path, line), export))
    if export.launches != expected:
        raise EvidenceError(f"{path}: {export.launches} of {expected} launches can be read", _DAMAGED_HINT)
    return export


def _run_reader(path: Path, output: BinaryIO) -> None:
    """Write the content of the report to `output`."""
    size = path.stat().st_size
    limit = _SECONDS + size * _SECONDS_PER_BYTE
    module = "frx_graph.evidence.ncu.report_process"
    # -P: nothing is imported from the working directory.
    command = [sys.executable, "-P", "-m", module, str(path.absolute()), str(_MOST_MEMORY + size * _MEMORY_PER_BYTE)]
    ran = run_program(command, limit_seconds=limit, stdout=output)
    if ran.ending is RunEnding.TIMED_OUT:
        raise EvidenceError(f"{path}: ncu-report took longer than {limit:.0f} s")
    text = ran.errors.decode("utf-8", "replace")
    # It continues without parts that it could not parse, and only this reports them.
    if ran.exit_code or "Can't parse" in text:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), f"exit code {ran.exit_code}")
        raise EvidenceError(f"{path}: ncu-report cannot read it: {last.strip()[:200]}", _DAMAGED_HINT)


def _parse_line(path: Path, line: bytes) -> _LaunchLine:
    try:
        launch = _LaunchLine.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise EvidenceError(
            f"{path}: a launch whose {where or 'record'} is no {first['type']}", _DAMAGED_HINT
        ) from None
    if not launch.metric_count:
        raise EvidenceError(f"{path}: a launch of {launch.kernel[:80]!r} without any metric", _DAMAGED_HINT)
    return launch


def _build_launch(found: _LaunchLine, export: NcuExport) -> KernelLaunch:
    values: dict[str, float] = {}
    names: dict[str, str] = {}
    for name, unit, value in found.metrics:
        try:
            read = resolve_metric(name, unit)
        except ValueError as error:
            export.note_unit(str(error), export.launches)
            continue
        if read is not None and not read.is_possible(value * read.factor):
            export.note_impossible(f"{name}: {value:g}", export.launches)
        elif read is not None and read.name not in values:
            values[read.name] = value * read.factor
            names[read.name] = name
    major, minor = found.capability
    return KernelLaunch(
        number=str(export.launches - 1),
        process="",
        kernel=found.kernel,
        device=found.device,
        compute_capability="" if major is None or minor is None else f"{major}.{minor}",
        grid=_complete_dimensions(found.grid),
        block=_complete_dimensions(found.block),
        source=export.source,
        line=None,
        values=values,
        names=names,
        rules=tuple(replace(rule, text=_LINK.sub(_format_link, rule.text)) for rule in found.rules),
        device_name=found.device_name,
        ranges=found.ranges,
    )


def _complete_dimensions(found: tuple[int | None, int | None, int | None]) -> Dimensions | None:
    x, y, z = found
    return None if x is None or y is None or z is None else (x, y, z)


def _format_link(link: re.Match[str]) -> str:
    """Format a name as Nsight Compute's own exports do."""
    return f"{link[2]} ({link[3]})" if link[1] == "url" else link[3]
