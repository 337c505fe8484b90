"""Run a workload that can be stopped and continued as a whole."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from frx_graph.errors import TrialError
from frx_graph.runs.workload.guarded_process import GuardedProcess
from frx_graph.support.supervisor.family import MARK, ProcessFamily
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
        mark = uuid.uuid4().hex
        with defer_signals() as release:
            try:
                with (folder / "stdout.log").open("wb") as output, (folder / "stderr.log").open("wb") as errors:
                    self._guard = self._guarded.start(
                        command, {**environment, MARK: mark}, subprocess.DEVNULL, output, errors
                    )
            except BaseException:
                self._guarded.close()
                raise
            self._family = ProcessFamily(self._guard, mark)
            try:
                release()
                self.pid = self._wait_for_start(command[0])
            except BaseException:
                self.end(0.0)
                raise

    def _wait_for_start(self, name: str) -> int:
        match self._guarded.read_words(_ANSWER_SECONDS):
            case ["started", number]:
                return int(number)
            case ["failed", error]:
                raise TrialError(f"{name} cannot be started: {os.strerror(int(error))}")
            case _:
                raise TrialError(f"{name} cannot be started: no answer")

    def pause(self) -> Moment:
        """Stop all processes of the workload; return when they have stopped."""
        return self._signal_and_wait(signal.SIGSTOP, "stopped")

    def resume(self) -> Moment:
        """Let all processes of the workload continue."""
        return self._signal_and_wait(signal.SIGCONT, "continued")

    def has_ended(self) -> bool:
        """Return True if the workload has ended by itself; then `exit_code` is set."""
        while self.exit_code is None and (words := self._guarded.read_words(0.0)):
            self._note(words)
        return self.exit_code is not None

    def measure_memory(self) -> int:
        """Return the resident memory of all processes of the workload; shared pages count in each."""
        with contextlib.suppress(psutil.Error, OSError):
            guard_has = psutil.Process(self._guard.pid).memory_info().rss
            return max(0, self._family.measure_memory() - guard_has)
        return 0

    def end(self, patience: float = _TERMINATE_SECONDS) -> None:
        """End all processes of the workload, stopped ones too; return when they are gone. Interrupts are deferred until
        then."""
        finish_ending(self._end, patience)

    def _end(self, patience: float) -> None:
        while self._guard.returncode is None:
            if patience and not self.has_ended():
                self._guarded.send(signal.SIGTERM)
                self._guarded.send(signal.SIGCONT)
                self._wait_for_end(patience)
            self._guarded.send(signal.SIGKILL)
            # A guard without a connection ends the remaining processes, then itself.
            self._guarded.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(_ANSWER_SECONDS)
            if self._guard.returncode is None:
                self._family.end(0.0)
        self._guarded.close()

    def _wait_for_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.exit_code is None and not self._guarded.silent and (left := deadline - time.monotonic()) > 0:
            self._note(self._guarded.read_words(left))

    def _signal_and_wait(self, number: int, answer: str) -> Moment:
        self._guarded.send(number)
        deadline = time.monotonic() + _ANSWER_SECONDS
        while self.exit_code is None:
            words = self._guarded.read_words(max(0.0, deadline - time.monotonic()))
            self._note(words)
            match words:
                case [said, at, cpu_seconds] if said == answer:
                    return Moment(int(at), float(cpu_seconds))
                case []:
                    raise TrialError("the guard of the workload's processes was killed", "try again")
        # It has ended by itself.
        return Moment(time.time_ns(), self._cpu_seconds)

    def _note(self, words: Sequence[str]) -> None:
        match words:
            case ["ended", code, _, cpu_seconds]:
                self.exit_code, self._cpu_seconds = int(code), float(cpu_seconds)
