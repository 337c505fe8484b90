"""Messages between a fleet and the processes that read its runs: tasks go in, answers come out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ReadingTask:
    """A run's folder, an archive of one or many, or the summary alone of a run that is elsewhere."""

    kind: Literal["folder", "archive", "summary"]
    path: str
    """Where it is on this machine: of a summary, the file."""
    name: str
    """How it is called in the report: relative to what was asked for."""
    part: int = 0
    parts: int = 1
    """Of the runs in an archive, every one whose number leaves `part` when divided by `parts`."""
    sizes: dict[str, int] | None = None
    """Of a summary: bytes of the files of its run, by name."""
    run_id: str | None = None
    """Of a folder that is not called as its run is."""

    def to_line(self) -> bytes:
        """As it is sent. Names of files are any bytes, which JSON can hold as halves of surrogate pairs."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> ReadingTask:
        """As it is received."""
        return ReadingTask(**json.loads(line))


@dataclass(frozen=True, slots=True)
class ReadRun:
    """The rows of a run by table, each a line of JSON."""

    rows: dict[str, list[bytes]]


@dataclass(frozen=True, slots=True)
class Failure:
    """A run, or an archive of some, that cannot be read, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """A run whose summary may not be used: its files are needed."""

    name: str


Answer = ReadRun | Failure | Fetch
