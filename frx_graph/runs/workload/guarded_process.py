"""Start a workload behind a guard, and talk to it; `workload_guard` describes the guard.

If another process kills the guard, this process ends what the guard would have ended (Linux).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from frx_graph.runs.workload import workload_guard
from frx_graph.support.supervisor.lines import LineReader
from frx_graph.support.supervisor.process import Stream, signal_group, wait_for_exit

_GONE_SECONDS = 10.0
"""More than the guard takes."""
_PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""
_POLL_SECONDS = 0.01


class GuardedProcess:
    """A workload behind its guard. Signals sent before `start` reach it once it runs."""

    def __init__(self) -> None:
        control_read, control = os.pipe()
        status, status_write = os.pipe()
        self._said = LineReader(status)
        self._ours, self._theirs = [status, control], [control_read, status_write]
        self._guard: subprocess.Popen[bytes] | None = None

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        stdin: Stream,
        stdout: Stream,
        stderr: Stream,
    ) -> subprocess.Popen[bytes]:
        """Start the guard in a new session. Raises `OSError` or `ValueError` if that fails."""
        guard = [sys.executable, "-I", "-S", str(Path(workload_guard.__file__)), *map(str, self._theirs)]
        try:
            self._guard = subprocess.Popen(
                [*guard, *command],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                bufsize=0,
                env=environment,
                pass_fds=self._theirs,
                start_new_session=True,
            )
        finally:
            _close(self._theirs)
        return self._guard

    def send(self, number: int) -> None:
        """Send a signal to the workload; SIGKILL, SIGSTOP and SIGCONT reach all that it has started."""
        # The guard may have ended with the workload.
        with contextlib.suppress(OSError):
            if self._ours:
                os.write(self._ours[-1], bytes([number]))

    @property
    def silent(self) -> bool:
        """True if the guard has gone."""
        return self._said.ended

    def read_words(self, seconds: float) -> list[str]:
        """Return the words of the guard's next line; none if there is none within `seconds`."""
        return (self._said.read_line(seconds) or b"").decode().split()

    def close(self) -> None:
        """Close the connection, and wait for the guard, which ends the remaining processes, and then itself. Does
        nothing the second time."""
        _close(self._ours)
        _close(self._theirs)
        if self._guard is not None:
            wait_for_exit(self._guard, _GONE_SECONDS)
            signal_group(self._guard, signal.SIGKILL)
            self._guard.wait()


@contextlib.contextmanager
def adopt_orphans() -> Iterator[Callable[[], None]]:
    """Make orphaned descendants children of this process while the block runs (Linux).

    Yields a function that ends all children that are new since then, with their descendants.
    """
    before = {child.pid for child in _list_children()}
    _set_subreaper(1)
    try:
        yield lambda: _end_orphans(before)
    finally:
        _set_subreaper(0)


def _end_orphans(spared: set[int]) -> None:
    deadline = time.monotonic() + _GONE_SECONDS
    # The children of an ended orphan become children in turn.
    while time.monotonic() < deadline and (found := [child for child in _list_children() if child.pid not in spared]):
        for orphan in found:
            with contextlib.suppress(psutil.Error, OSError):
                orphan.kill()
            with contextlib.suppress(OSError):
                os.waitpid(orphan.pid, os.WNOHANG)
        time.sleep(_POLL_SECONDS)


def _list_children() -> list[psutil.Process]:
    try:
        return psutil.Process().children()
    except (psutil.Error, OSError):
        return []


def _set_subreaper(value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, value)


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
