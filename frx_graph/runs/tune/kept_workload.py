"""Run a workload that can be stopped and continued as a whole."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from frx_graph.errors import TrialError
from frx_graph.runs.workload.guarded_process import GuardedProcess
from frx_graph.support.supervisor.process import defer_signals, finish_ending

_ANSWER_SECONDS = 10.0
_TERMINATE_SECONDS = 1.0
"""Time to clean up on SIGTERM, as a data loader with shared memory does."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment just before the workload was stopped or continued, in nanoseconds since the epoch.

    `cpu_seconds` is the processor time of all the workload's processes so far, counted while they are stopped.
    """

    at_ns: int
    cpu_seconds: float


class PausableWorkload:
    """Starts `command`, without a shell and with an empty standard input. Call `end` to end it.

    Its output goes to `stdout.log` and `stderr.log` of `folder`. Raises `TrialError` if it cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.exit_code: int | None = None
        """Set once the workload is known to have ended; a signal's number is negative."""
        self._cpu_seconds = 0.0
        self._guarded = GuardedProcess()
        with defer_signals() as release:
            try:
                with (folder / "stdout.log").open("wb") as output, (folder / "stderr.log").open("wb") as errors:
                    self._guard = self._guarded.start(command, environment, subprocess.DEVNULL, output, errors)
            except BaseException:
                self._guarded.close()
                raise
            try:
                release()
                match self._guarded.read_words(_ANSWER_SECONDS):
                    case ["started", number]:
                        self.pid = int(number)
                    case ["failed", error]:
                        raise TrialError(f"{command[0]} cannot be started: {os.strerror(int(error))}")
                    case _:
                        raise TrialError(f"{command[0]} cannot be started: no answer")
            except BaseException:
                self.end(0.0)
                raise

    def pause(self) -> Moment:
        """Stop all processes of the workload; return when they have stopped."""
        return self._signal_and_wait(signal.SIGSTOP, "stopped")

    def resume(self) -> Moment:
        """Let all processes of the workload continue."""
        return self._signal_and_wait(signal.SIGCONT, "continued")

    def has_ended(self) -> bool:
        """Return True if the workload has ended by itself; then `exit_code` is set."""
        while self.exit_code is None and self._read_words(0.0):
            pass
        return self.exit_code is not None

    def measure_memory(self) -> int:
        """Return the resident memory of all processes of the workload; shared pages count in each."""
        used = 0
        with contextlib.suppress(psutil.Error, OSError):
            # The guard adopts orphans.
            for process in psutil.Process(self._guard.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error, OSError):
                    used += process.memory_info().rss
        return used

    def end(self, patience: float = _TERMINATE_SECONDS) -> None:
        """End all processes of the workload, stopped ones too; return when they are gone. Interrupts are deferred until
        then."""
        finish_ending(self._end, patience)

    def _end(self, patience: float) -> None:
        if self._guard.returncode is not None:
            return
        if patience:
            self._guarded.send(signal.SIGTERM)
            self._guarded.send(signal.SIGCONT)
            deadline = time.monotonic() + patience
            while not (self.has_ended() or self._guarded.silent) and (left := deadline - time.monotonic()) > 0:
                self._read_words(left)
        self._guarded.send(signal.SIGKILL)
        self._guarded.close()

    def _signal_and_wait(self, number: int, answer: str) -> Moment:
        self._guarded.send(number)
        deadline = time.monotonic() + _ANSWER_SECONDS
        while self.exit_code is None:
            match self._read_words(max(0.0, deadline - time.monotonic())):
                case [said, at, cpu_seconds] if said == answer:
                    return Moment(int(at), float(cpu_seconds))
                case []:
                    raise TrialError("the guard of the workload's processes was killed", "try again")
        # It has ended by itself.
        return Moment(time.time_ns(), self._cpu_seconds)

    def _read_words(self, seconds: float) -> list[str]:
        words = self._guarded.read_words(seconds)
        match words:
            case ["ended", code, _, cpu_seconds]:
                self.exit_code, self._cpu_seconds = int(code), float(cpu_seconds)
        return words
