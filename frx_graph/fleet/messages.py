"""Messages between a fleet and the processes that read its runs: tasks go in, answers come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ReadingTask:
    """A run's folder, an archive of one or more runs, or only the summary of a remote run."""

    kind: Literal["folder", "archive", "summary"]
    path: str
    """Path on this machine; for a summary, that of the file."""
    name: str
    """Name in the report, relative to the requested source."""
    part: int = 0
    parts: int = 1
    """Selects runs of an archive: each run whose number leaves `part` when divided by `parts`."""
    sizes: dict[str, int] | None = None
    """File sizes in bytes by name, for the run of a summary."""
    run_id: str | None = None
    """The run's own name, if its folder has another one."""


@dataclass(frozen=True, slots=True)
class ReadRun:
    """The rows of a run by table, each a line of JSON."""

    rows: dict[str, list[bytes]]


@dataclass(frozen=True, slots=True)
class Failure:
    """A run, or an archive of runs, that cannot be read, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """A run whose summary may not be used, so that its files are needed."""

    name: str


Answer = ReadRun | Failure | Fetch
