"""Watch a process that a fork server has started: the part of `subprocess.Popen` that supervision needs.

The process is the server's child, so only the server can read its exit code. It reaps the process when it is asked to,
and until then the process id cannot be reused, as long as the server runs.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import weakref
from collections.abc import Callable


class ForkedProcess:
    """The process `pid`. `reap` returns its exit code, as `Popen` has it, after it has ended. `is_served` tells whether
    the server runs. Raises `OSError` if the process cannot be watched."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, reap: Callable[[int], int], is_served: Callable[[], bool]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._reap = reap
        self._is_served = is_served
        self._watched = os.pidfd_open(pid)
        self._close = weakref.finalize(self, os.close, self._watched)

    def has_exited(self, seconds: float = 0.0) -> bool:
        """Return whether the process has exited, after waiting up to `seconds`."""
        if self.returncode is not None:
            return True
        exits = select.poll()
        exits.register(self._watched, select.POLLIN)
        return bool(exits.poll(1000 * seconds))

    def keeps_pid(self) -> bool:
        """Return True if no other process can have this one's id."""
        return self.returncode is None and (not self.has_exited() or self._is_served())

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, reap the process, and return its exit code; a signal's number is negative. Raises
        `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            while not self.has_exited(3600.0 if timeout is None else timeout):
                if timeout is not None:
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            try:
                self.returncode = self._reap(self.pid)
            except OSError:
                # The server has gone, and with it this process.
                self.returncode = -signal.SIGKILL
            self._close()
        return self.returncode
