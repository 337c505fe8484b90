"""A forked process that writes to a ledger, says what was acknowledged on a pipe, and is killed."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
import traceback
from collections.abc import Callable


@dataclasses.dataclass
class Writer:
    """A process that is to be killed `life` seconds after it was started, or, if it is `patient`, after its first
    event. `mark` is that of a trial's processes."""

    location: str
    process: int
    reading: int
    life: float
    patient: bool = False
    mark: str = ""
    begun: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def due(self) -> float:
        return self.begun + self.life

    def killed(self) -> set[tuple[int, str]]:
        """Kill it; what it had been told."""
        os.kill(self.process, signal.SIGKILL)
        with os.fdopen(self.reading) as pipe:
            # A line is written at once, but the last may be cut where the pipe was full.
            lines = [line.split() for line in pipe.read().splitlines(keepends=True) if line.endswith("\n")]
        _, status = os.waitpid(self.process, 0)
        if not os.WIFSIGNALED(status):
            raise RuntimeError(f"a writer ended by itself, with {os.waitstatus_to_exitcode(status)}")
        return {(int(position), name) for position, name in lines}


def started(write: Callable[[int], None]) -> tuple[int, int]:
    """A process that calls `write` with the pipe that it is to acknowledge on, and where to read that."""
    reading, told = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            write(told)
        finally:
            traceback.print_exc()
            os._exit(70)
    os.close(told)
    return process, reading
