"""Read the events of a run, `raw/trace.jsonl`, line by line.

A killed program leaves a torn line, and other programs write unknown types and keys. Unreadable parts are counted and
reported, and the rest is read. A file without any event is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic_core import from_json

from frx_graph.errors import EvidenceError
from frx_graph.evidence.opening import open_evidence
from frx_graph.evidence.run.event_fields import UnusableEventError, parse_event
from frx_graph.evidence.run.events import RunEvent, ShapeSnapshot

LONGEST_LINE = 16 << 20
"""Longest line in bytes. A snapshot of 10,000 parameters takes 2 MB."""
MOST_RECORDS = 2_000_000
"""Limit on events, and on tensors in them: about 400 MB. With everything recorded, a step has about ten."""
_SKIPPED_AT_ONCE = 1 << 20
_EXPECTED = "the events of a run, one JSON object a line"


@dataclass(frozen=True, slots=True)
class EventStream:
    """Events in writing order, and counts of unreadable parts."""

    events: tuple[RunEvent, ...]
    unreadable: int = 0
    """Lines without an event that can be placed in time and measured."""
    first_problem: str | None = None
    """Examples of these lines."""
    foreign: int = 0
    """Events with types or loader stages that are unknown here."""
    torn: bool = False
    """The last line is incomplete: the program was killed while it wrote."""
    left_out: int = 0
    """Events after the first `MOST_RECORDS`."""


def read_event_stream(path: Path, *, most: int = MOST_RECORDS, longest: int = LONGEST_LINE) -> EventStream:
    """Read the events in the file at `path`, which may be empty. Raises `EvidenceError` if it cannot be read, or if no
    line is an event."""
    events: list[RunEvent] = []
    records = unreadable = foreign = left_out = 0
    problem: str | None = None
    torn = False
    with open_evidence(path, _EXPECTED) as file:
        for number, line in enumerate(_iterate_lines(file, longest), start=1):
            torn = False
            if line is not None and not line.strip():
                continue
            try:
                event = parse_event(_parse_line(line, longest))
            except UnusableEventError as error:
                torn = line is not None and not line.endswith(b"\n")
                if not torn:
                    unreadable += 1
                    problem = problem or f"line {number}: {error}"
                continue
            if event is None:
                foreign += 1
                continue
            records += 1 + (len(event.tensors) if isinstance(event, ShapeSnapshot) else 0)
            if records > most:
                left_out += 1
            else:
                events.append(event)
    if not events and not foreign and (unreadable or torn):
        said = problem or "its only line is torn"
        raise EvidenceError(f"{path}: {said}, expected {_EXPECTED}", "is it raw/trace.jsonl of a run?")
    return EventStream(tuple(events), unreadable, problem, foreign, torn, left_out)


def _iterate_lines(file: IO[bytes], longest: int) -> Iterator[bytes | None]:
    """Yield each line with its end; None for one over the limit, which is skipped."""
    while line := file.readline(longest + 1):
        if len(line) <= longest or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(_SKIPPED_AT_ONCE)
        yield None


def _parse_line(line: bytes | None, longest: int) -> object:
    if line is None:
        raise UnusableEventError(f"longer than {longest:,} bytes")
    try:
        return from_json(line)
    except ValueError:
        # Its message may quote the line.
        raise UnusableEventError("no JSON that can be read") from None
