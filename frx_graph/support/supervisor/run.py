"""Run a program once, to its end or to a limit, and record its time, output and ending."""

from __future__ import annotations

import contextlib
import enum
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    output, errors = bytearray(), bytearray()
    with (
        supervise(arguments, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, environment=environment) as process,
        contextlib.ExitStack() as opened,
    ):
        pipes = {pipe.fileno(): kept for pipe, kept in ((process.stdout, output), (process.stderr, errors)) if pipe}
        ready = select.poll()
        for descriptor in pipes:
            os.set_blocking(descriptor, False)
            ready.register(descriptor, select.POLLIN)
        longest = _POLL_SECONDS
        with contextlib.suppress(OSError, AttributeError):
            end = os.pidfd_open(process.pid)
            opened.callback(os.close, end)
            ready.register(end, select.POLLIN)
            longest = _NOTICE_SECONDS
        ending: RunEnding | None = None
        while ending is None:
            left = limit_seconds - (time.perf_counter() - begin)
            if has_exited(process):
                for descriptor, kept in pipes.items():
                    while len(kept) <= MOST_OUTPUT and _read(descriptor, kept):
                        pass
                ending = RunEnding.FLOODED if len(output) > MOST_OUTPUT else RunEnding.EXITED
            elif len(output) > MOST_OUTPUT:
                ending = RunEnding.FLOODED
            elif left <= 0:
                ending = RunEnding.TIMED_OUT
            else:
                for descriptor, _ in ready.poll(1000 * min(left, longest)):
                    if descriptor in pipes and _read(descriptor, pipes[descriptor]) == 0:
                        ready.unregister(descriptor)
        seconds = time.perf_counter() - begin
    return ProgramRun(ending, seconds, process.returncode, bytes(output), bytes(errors))


def _read(descriptor: int, kept: bytearray) -> int | None:
    """Read a chunk, and return its size: 0 at the end; None if nothing is there."""
    try:
        chunk = os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None
    if len(kept) <= MOST_OUTPUT:
        kept += chunk
    return len(chunk)


def get_signal_name(number: int) -> str:
    """Return the name of a signal, or its number if it has none, as real-time signals have."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
