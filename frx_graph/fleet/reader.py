"""Start a process that reads runs, and return its answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Final

from frx_graph.errors import EvidenceError
from frx_graph.fleet.messages import Answer, Failure, Fetch, ReadingTask, ReadRun
from frx_graph.fleet.run_tables import TABLES
from frx_graph.support.supervisor.lines import LineReader
from frx_graph.support.supervisor.process import extend_pythonpath, has_exited, signal_group, supervise, wait_for_exit

MEMORY_BYTES: Final = 2 << 30
"""Memory limit of a reader. A trace of 1 GB takes 1.5 GB (docs/traces.md), a summary some ten megabytes."""
RUN_SECONDS: Final = 300.0
"""Time limit for one run, or until the next line of output. A trace of 1 GB takes a minute."""
_EXIT_SECONDS: Final = 1.0
"""Seconds from the end of a reader's output to its exit."""
_PASSED_ON: Final = frozenset(
    {
        # Locations of programs, libraries and temporary files.
        *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "HOME", "XDG_CACHE_HOME", "TMPDIR", "TMP", "TEMP"),
        # Identity: torch names its cache after the user, which a container's list of users may lack.
        *("USER", "LOGNAME", "USERNAME", "LANG", "LANGUAGE", "TZ"),
        # CUDA, which torch looks for when it is imported.
        *("CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
    }
)
_PASSED_ON_BEGINNINGS: Final = ("LC_", "PYTHON", "TORCH_", "TORCHINDUCTOR_", "OMP_", "KMP_", "MKL_", "MALLOC_")
"""A list of allowed variables, since the names of keys and passwords cannot be listed."""


class StoppedError(Exception):
    """Reading was stopped because the answers are no longer needed."""


class Reader:
    """Reads one task after another. The process starts when it is needed, and restarts if a run ends it."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES, run_seconds: float = RUN_SECONDS) -> None:
        self._memory_bytes = memory_bytes
        self._run_seconds = run_seconds
        self._running: tuple[subprocess.Popen[bytes], LineReader] | None = None
        self._life = ExitStack()
        self._stopped = False

    def read_task(self, task: ReadingTask) -> Iterator[Answer]:
        """Yield the answers to a task, in the order in which its runs are read.

        Raises `EvidenceError` if no process can be started, and `StoppedError` if the reader was stopped.
        """
        process, answers = self._ensure_started()
        assert process.stdin is not None
        rows: dict[str, list[bytes]] = {table: [] for table in TABLES}
        name, finished = task.name, False
        try:
            with suppress(BrokenPipeError):
                # File names are any bytes, which JSON can hold as halves of surrogate pairs.
                process.stdin.write(json.dumps(asdict(task)).encode() + b"\n")
            while (line := answers.read_line(self._run_seconds)) is not None:
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
            yield Failure(name, self._describe_ending(process, answers))
        finally:
            if not finished:
                self.close()
        if task.kind == "archive" and name != task.name:
            yield Failure(task.name, f"is read up to {name}, which has ended its reader")

    def stop(self) -> None:
        """Stop the current read and refuse further ones. Other threads call this."""
        self._stopped = True
        if (running := self._running) is not None:
            signal_group(running[0], signal.SIGKILL)

    def close(self) -> None:
        """End the process."""
        self._running = None
        self._life.close()

    def _ensure_started(self) -> tuple[subprocess.Popen[bytes], LineReader]:
        if self._stopped:
            raise StoppedError
        if self._running is None or has_exited(self._running[0]):
            self.close()
            # -P: nothing is imported from the current folder, which may hold runs of others.
            program = (sys.executable, "-P", "-m", "frx_graph.fleet.reader_process")
            try:
                process = self._life.enter_context(
                    supervise(
                        [*program, str(self._memory_bytes), str(os.getpid())],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        environment={**filter_environment(os.environ), **extend_pythonpath(), "OMP_NUM_THREADS": "1"},
                    )
                )
            except OSError as error:
                raise EvidenceError(f"no process can be started: {error.strerror or error}") from None
            assert process.stdout is not None
            self._running = process, LineReader(process.stdout.fileno())
        return self._running

    def _describe_ending(self, process: subprocess.Popen[bytes], answers: LineReader) -> str:
        """End the process, and explain why its answers stopped."""
        ended = answers.ended and wait_for_exit(process, _EXIT_SECONDS)
        self.close()
        code = process.returncode
        if not ended:
            return f"reading it takes longer than {self._run_seconds:.0f} s"
        if code == -signal.SIGKILL:
            return "its reader was killed, perhaps because the machine ran out of memory"
        return f"its reader ended by signal {-code}" if code < 0 else f"its reader ended with exit code {code}"


def filter_environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `ours` that a reader gets: those that Python and torch need, without credentials."""
    return {name: value for name, value in ours.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_BEGINNINGS)}
