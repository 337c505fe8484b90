"""A program that is run once, to its end or to a limit: how long it took, what it wrote, how it ended.

It leads a process group of its own, which is ended with it: nothing that it has started outlives the run.
"""

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

from frx_graph.errors import EvidenceError
from frx_graph.support.termination import held_back

MOST_OUTPUT = 8 << 20
"""Bytes on standard output from which on a program is taken to write without end."""
_MOST_ERRORS = 1 << 20
"""Bytes of standard error that are kept, from the first on; what comes then is read and dropped."""
_CHUNK = 1 << 16
_POLL_SECONDS = 0.001
"""How often the end of a program is looked for where the system does not tell of it (Linux before 5.3)."""


class Ending(enum.StrEnum):
    """How a run came to its end."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    FLOODED = "flooded"
    """It wrote more than `MOST_OUTPUT`, and was ended."""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """One run."""

    ending: Ending
    seconds: float
    """From before it was started to its end, the start of its process included."""
    exit_code: int
    """A signal's number is negative; that of a program that was ended here is -9."""
    output: bytes
    errors: bytes

    @property
    def problem(self) -> str | None:
        """What makes its time no measure of anything, for people; None for a program that has ended well."""
        if self.ending is Ending.TIMED_OUT:
            return f"it had not ended after {self.seconds:.0f} s"
        if self.ending is Ending.FLOODED:
            return f"it wrote more than {MOST_OUTPUT >> 20} MiB to its standard output"
        if self.exit_code < 0:
            with contextlib.suppress(ValueError):
                return f"it was ended by {signal.Signals(-self.exit_code).name}"
            return f"it was ended by signal {-self.exit_code}"
        return f"it ended with exit code {self.exit_code}" if self.exit_code else None


def run_program(
    arguments: Sequence[str], *, limit_seconds: float, environment: Mapping[str, str] | None = None
) -> ProgramRun:
    """Run `arguments`, by no shell, with nothing on standard input, and `environment` instead of this process's own.

    Raises `EvidenceError` for what cannot be started.
    """
    with held_back() as release:
        begin = time.perf_counter()
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise EvidenceError(f"{arguments[0]} cannot be started: {error.strerror or error}") from None
        pipes = _Pipes(process)
        try:
            release()
            ending = _followed(process, pipes, begin + limit_seconds)
            seconds = time.perf_counter() - begin
        finally:
            # Before the leader is waited for: until then nobody else can have the number of its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            exit_code = process.wait()
            pipes.close()
    return ProgramRun(ending, seconds, exit_code, bytes(pipes.output), bytes(pipes.errors))


class _Pipes:
    """What a program writes, as far as it is kept, and the end of the program where the system tells of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.output, self.errors = bytearray(), bytearray()
        self._files = (process.stdout, process.stderr)
        self._selector = selectors.DefaultSelector()
        for file, kept in zip(self._files, (self.output, self.errors), strict=True):
            os.set_blocking(file.fileno(), False)
            self._selector.register(file, selectors.EVENT_READ, kept)
        self._end: int | None = None
        with contextlib.suppress(OSError, AttributeError):
            self._end = os.pidfd_open(process.pid)
            self._selector.register(self._end, selectors.EVENT_READ)

    def wait(self, seconds: float) -> None:
        """Read what comes next, or notice the end."""
        for key, _ in self._selector.select(seconds if self._end is not None else min(seconds, _POLL_SECONDS)):
            if key.data is not None and not self._read(key.fd, key.data):
                self._selector.unregister(key.fileobj)

    def drain(self) -> None:
        """Read what a program that has ended has left."""
        for file, kept in zip(self._files, (self.output, self.errors), strict=True):
            while len(kept) <= MOST_OUTPUT and self._read(file.fileno(), kept, at_once=True):
                pass

    def close(self) -> None:
        """Nothing can be read any more."""
        self._selector.close()
        for file in self._files:
            file.close()
        if self._end is not None:
            os.close(self._end)

    def _read(self, descriptor: int, kept: bytearray, *, at_once: bool = False) -> bool:
        """False at the end, and with `at_once` where nothing is there to be read."""
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return not at_once
        if kept is self.output or len(kept) < _MOST_ERRORS:
            kept += chunk
        return bool(chunk)


def _followed(process: subprocess.Popen[bytes], pipes: _Pipes, deadline: float) -> Ending:
    """How the program ends, or that it has to be ended. It is not waited for."""
    while True:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            pipes.drain()
            return Ending.FLOODED if len(pipes.output) > MOST_OUTPUT else Ending.EXITED
        if len(pipes.output) > MOST_OUTPUT:
            return Ending.FLOODED
        remaining = deadline - time.perf_counter()
        if remaining <= 0:
            return Ending.TIMED_OUT
        pipes.wait(remaining)
