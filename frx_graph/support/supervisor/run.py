"""Run a program once, to its end or to a limit, and record its time, output and ending."""

from __future__ import annotations

import contextlib
import enum
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from frx_graph.support.supervisor.process import Stream, has_exited, supervise

MOST_OUTPUT = 8 << 20
"""Bytes. A program that writes more to standard output is ended; only the first part of standard error is kept."""
_CHUNK = 1 << 16
_POLL_SECONDS, _NOTICE_SECONDS = 0.001, 0.2
"""Seconds between polls for the end of a program, without and with `pidfd_open` (Linux 5.3). Ray cancels a task by an
exception, which waits until a system call returns."""


class RunEnding(enum.StrEnum):
    """The way in which a run ended."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    FLOODED = "flooded"
    """The program wrote more than `MOST_OUTPUT`, and was killed."""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """One run."""

    ending: RunEnding
    seconds: float
    """Wall time from before the start of the process to its end."""
    exit_code: int
    """Minus the signal's number for a program that a signal ended; -9 if it was ended here."""
    output: bytes
    errors: bytes

    @property
    def problem(self) -> str | None:
        """The reason why its time measures nothing; None for a program that succeeded."""
        if self.ending is RunEnding.TIMED_OUT:
            return f"it had not ended after {self.seconds:.0f} s"
        if self.ending is RunEnding.FLOODED:
            return f"it wrote more than {MOST_OUTPUT >> 20} MiB to its standard output"
        if self.exit_code < 0:
            return f"it was ended by {get_signal_name(-self.exit_code)}"
        return f"it ended with exit code {self.exit_code}" if self.exit_code else None


def run_program(
    arguments: Sequence[str],
    *,
    limit_seconds: float,
    environment: Mapping[str, str] | None = None,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.PIPE,
) -> ProgramRun:
    """Run `arguments`, without a shell, with `environment` instead of this process's; its children end with it.

    Standard output may go to a file of any length instead of into the result. Raises the errors of `supervise`.
    """
    begin = time.perf_counter()
    with (
        supervise(arguments, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, environment=environment) as process,
        contextlib.closing(_OutputPipes(process)) as pipes,
    ):
        ending = _follow(process, pipes, begin + limit_seconds)
        seconds = time.perf_counter() - begin
    return ProgramRun(ending, seconds, process.returncode, bytes(pipes.output), bytes(pipes.errors))


def get_signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has none, as real-time signals have."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


class _OutputPipes:
    """Reads the output of a program, and notices its end if `pidfd_open` exists."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.output, self.errors = bytearray(), bytearray()
        kept = ((process.stdout, self.output), (process.stderr, self.errors))
        self._files: list[tuple[IO[bytes], bytearray]] = [(file, into) for file, into in kept if file is not None]
        self._selector = selectors.DefaultSelector()
        for file, into in self._files:
            os.set_blocking(file.fileno(), False)
            self._selector.register(file, selectors.EVENT_READ, into)
        self._end: int | None = None
        with contextlib.suppress(OSError, AttributeError):
            self._end = os.pidfd_open(process.pid)
            self._selector.register(self._end, selectors.EVENT_READ)

    def wait(self, seconds: float) -> None:
        """Read the next output, or notice the end."""
        for key, _ in self._selector.select(min(seconds, _POLL_SECONDS if self._end is None else _NOTICE_SECONDS)):
            if key.data is not None and not self._read(key.fd, key.data):
                self._selector.unregister(key.fileobj)

    def drain(self) -> None:
        """Read the rest, once the program has ended."""
        for file, kept in self._files:
            while len(kept) <= MOST_OUTPUT and self._read(file.fileno(), kept, at_once=True):
                pass

    def close(self) -> None:
        """Release the selector and the process descriptor; the pipes belong to the process."""
        self._selector.close()
        if self._end is not None:
            os.close(self._end)

    def _read(self, descriptor: int, kept: bytearray, *, at_once: bool = False) -> bool:
        """Return False at the end, and with `at_once` if nothing is there to read."""
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return not at_once
        if len(kept) <= MOST_OUTPUT:
            kept += chunk
        return bool(chunk)


def _follow(process: subprocess.Popen[bytes], pipes: _OutputPipes, deadline: float) -> RunEnding:
    """Wait until the program ends or exceeds a limit, and return the ending. It is not reaped."""
    while True:
        if has_exited(process):
            pipes.drain()
            return RunEnding.FLOODED if len(pipes.output) > MOST_OUTPUT else RunEnding.EXITED
        if len(pipes.output) > MOST_OUTPUT:
            return RunEnding.FLOODED
        remaining = deadline - time.perf_counter()
        if remaining <= 0:
            return RunEnding.TIMED_OUT
        pipes.wait(remaining)
