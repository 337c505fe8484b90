"""What a reader is asked to read, as it goes to its process: one line of JSON."""

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

    def line(self) -> bytes:
        """As it is sent. Names of files are any bytes, which JSON can hold as halves of surrogate pairs."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def of_line(line: bytes) -> ReadingTask:
        """As it is received."""
        return ReadingTask(**json.loads(line))
