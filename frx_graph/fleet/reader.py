"""A process that reads runs, from the side of whoever wants to know of them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from frx_graph.errors import EvidenceError
from frx_graph.fleet.reader_environment import reader_environment
from frx_graph.fleet.reading_task import ReadingTask
from frx_graph.fleet.run_tables import TABLES
from frx_graph.support.package_path import package_pythonpath

MEMORY_BYTES: Final = 2 << 30
"""That a reader may have. A trace of 1 GB takes 1.5 GB (docs/traces.md), a summary some ten megabytes."""
RUN_SECONDS: Final = 300.0
"""For one run, or until it says something. That trace takes a minute."""
_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ReadRun:
    """The rows of a run by table, each a line of JSON."""

    rows: dict[str, list[bytes]]


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be read, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """A run of which more than the summary is wanted."""

    name: str


Answer = ReadRun | Failure | Fetch


class StoppedError(Exception):
    """Nobody wants what would be read."""


class Reader:
    """Reads one task after the other. The process is started when it is needed, and again behind a run that has ended
    it. To be closed by `close`."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES, run_seconds: float = RUN_SECONDS) -> None:
        self._memory_bytes = memory_bytes
        self._run_seconds = run_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def read(self, task: ReadingTask) -> Iterator[Answer]:
        """The answers to it, in the order of its runs. Raises `EvidenceError` where no process can be
        started, `StoppedError` where it was stopped."""
        process = self._started()
        assert process.stdin is not None
        rows: dict[str, list[bytes]] = {table: [] for table in TABLES}
        name, finished = task.name, False
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(task.line())
                process.stdin.flush()
            for line in self._lines(process):
                word, _, value = line.decode().partition("\t")
                match word:
                    case "begun":
                        name, rows = json.loads(value), {table: [] for table in TABLES}
                    case "unreadable":
                        yield Failure(*json.loads(value))
                    case "outdated":
                        yield Fetch(json.loads(value))
                    case "done":
                        finished = True
                        return
                    case _:
                        rows[word].append(value.encode())
                        if word == "runs":
                            yield ReadRun(rows)
            if self._stopped:
                raise StoppedError
            yield Failure(name, self._ending(process))
        finally:
            if not finished:
                self._end(process)
        if task.kind == "archive" and name != task.name:
            yield Failure(task.name, f"is read up to {name}, which has ended its reader")

    def stop(self) -> None:
        """From another thread: what is read now ends, and nothing more is read."""
        self._stopped = True
        if (process := self._process) is not None:
            _kill(process)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._end(self._process)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._stopped:
            raise StoppedError
        if self._process is None or self._process.poll() is not None:
            try:
                self._process = subprocess.Popen(
                    # -P: what lies in the current folder, among runs of others, is imported by nobody.
                    [sys.executable, "-P", "-m", "frx_graph.fleet.reader_process", str(self._memory_bytes)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    env={
                        **reader_environment(os.environ),
                        **package_pythonpath(),
                        "OMP_NUM_THREADS": "1",
                    },
                    start_new_session=True,
                )
            except OSError as error:
                raise EvidenceError(f"no process can be started: {error.strerror or error}") from None
        return self._process

    def _lines(self, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
        """Until the process ends, or says nothing for as long as one run may take."""
        assert process.stdout is not None
        descriptor, kept = process.stdout.fileno(), b""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while poll.poll(1e3 * self._run_seconds) and (chunk := os.read(descriptor, _CHUNK)):
            *lines, kept = (kept + chunk).split(b"\n")
            yield from lines

    def _ending(self, process: subprocess.Popen[bytes]) -> str:
        """Why it says no more."""
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(1.0)
            if code == -signal.SIGKILL:
                return "its reader was ended, as where a machine has no memory left"
            return f"its reader ended by signal {-code}" if code < 0 else f"its reader ended with exit code {code}"
        return f"reading it takes longer than {self._run_seconds:.0f} s"

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        _kill(process)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
