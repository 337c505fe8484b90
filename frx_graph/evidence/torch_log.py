"""Read the structured log that torch writes to the folder in `TORCH_TRACE`, which tlparse renders.

A record is a line `V0401 12:00:00.123456 PID THREAD file:line] {json}`. Its payload, if any, follows on lines that
begin with a tab. File names are interned: `{"str": [name, number]}`. The compilations are read, with the reasons why
frames were compiled again, and the graph breaks. Everything else, above all the graphs, is passed over.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from frx_graph.errors import EvidenceError
from frx_graph.evidence.opening import open_evidence

EXPECTED: Final = "a log that torch writes to TORCH_TRACE"
_RECORD: Final = re.compile(r"^[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d{1,9} (\d{1,15}) [^\]\n]{0,500}\] (\{.*)$")
IS_TORCH_LOG: Final = re.compile(rb"^[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d{1,9} \d+ [^\]\n]{0,500}\] \{", re.MULTILINE)
_LONGEST_LINE: Final = 1 << 22
_LONGEST_PAYLOAD: Final = 1 << 16
_LONGEST_TEXT: Final = 4_000
_MOST_COMPILATIONS: Final = 10_000
_PAYLOADS: Final = frozenset(["recompile_reasons", "dynamo_graph_break_reason"])


@dataclass(frozen=True, slots=True)
class Compilation:
    """A frame that was compiled: the process, the frame's number there, its version from 0, and where its function is.
    Empty texts: unknown."""

    process: int
    frame: int
    version: int | None
    function: str
    file: str
    line: int
    reason: str
    """The reason for compiling it again."""
    failed: str
    """The reason why it runs uncompiled."""
    operators: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class LoggedBreak:
    """A graph break, in the text of torch."""

    frame: int | None
    text: str


@dataclass(frozen=True, slots=True)
class TorchLog:
    """Compilations, in order. `unreadable` counts records that are not JSON."""

    source: Path
    compilations: tuple[Compilation, ...]
    breaks: tuple[LoggedBreak, ...]
    unreadable: int


def read_torch_log(path: Path) -> TorchLog:
    """Read the log at `path`. Raises `EvidenceError` if it cannot be read, or holds no record."""
    with (
        open_evidence(path, EXPECTED) as raw,
        io.TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="\n") as file,
    ):
        records, unreadable = 0, 0
        compilations: list[Compilation] = []
        breaks: list[LoggedBreak] = []
        reasons: dict[tuple[int, int, int | None], str] = {}
        for process, text, payload in _iterate_records(file):
            try:
                record = json.loads(text)
            except (ValueError, RecursionError):
                unreadable += 1
                continue
            records += 1
            if not isinstance(record, dict):
                continue
            name = _get_text(record.get("artifact"), "name")
            frame, version = _get_number(record, "frame_id"), _get_number(record, "frame_compile_id")
            if name == "recompile_reasons" and frame is not None and version is not None:
                reasons[process, frame, version] = _read_first_reason(payload)
            elif name == "dynamo_graph_break_reason" and payload:
                breaks.append(LoggedBreak(frame, payload[:_LONGEST_TEXT]))
            metrics = record.get("compilation_metrics")
            if isinstance(metrics, dict) and len(compilations) < _MOST_COMPILATIONS:
                found = _read_compilation(metrics, process, frame, version)
                compilations += [] if found is None else [found]
    if not records:
        raise EvidenceError(f"{path}: holds no record, expected {EXPECTED}")
    # Versions of torch that put no reason into the metrics log it beside them.
    filled = [
        replace(one, reason=one.reason or reasons.get((one.process, one.frame, one.version), ""))
        for one in compilations
    ]
    return TorchLog(path, tuple(filled), tuple(breaks), unreadable)


def _iterate_records(file: IO[str]) -> Iterator[tuple[int, str, str]]:
    """Yield the process and the JSON of each record with its payload, which only records that need it keep."""
    record: tuple[int, str] | None = None
    wanted = False
    payload: list[str] = []
    size = 0
    while line := file.readline(_LONGEST_LINE):
        if line.startswith("\t"):
            if wanted and size < _LONGEST_PAYLOAD:
                payload.append(line[1:])
                size += len(line)
            continue
        matched = _RECORD.match(line)
        if matched is None:
            continue
        if record is not None:
            yield *record, "".join(payload)
        record, payload, size = (int(matched[1]), matched[2]), [], 0
        wanted = any(name in matched[2] for name in _PAYLOADS)
    if record is not None:
        yield *record, "".join(payload)


def _read_compilation(
    metrics: Mapping[str, Any], process: int, frame: int | None, version: int | None
) -> Compilation | None:
    if frame is None or metrics.get("is_forward") is False:
        return None
    seconds = metrics.get("entire_frame_compile_time_s")
    return Compilation(
        process=process,
        frame=frame,
        version=version,
        function=_get_text(metrics, "co_name"),
        file=_get_text(metrics, "co_filename"),
        line=max(0, _get_number(metrics, "co_firstlineno") or 0),
        reason=_get_text(metrics, "recompile_reason"),
        failed=_get_text(metrics, "fail_reason"),
        operators=_get_number(metrics, "graph_op_count"),
        seconds=float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9 else None,
    )


def _read_first_reason(payload: str) -> str:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return ""
    first = found[0] if isinstance(found, list) and found else found
    return first[:_LONGEST_TEXT] if isinstance(first, str) else ""


def _get_text(fields: Any, name: str) -> str:
    value = fields.get(name) if isinstance(fields, dict) else None
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""


def _get_number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None
