"""Start a workload behind a guard, and talk to it; `workload_guard` describes the guard.

If another process kills the guard, this process ends what the guard would have ended (Linux).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from frx_graph.runs.workload import workload_guard
from frx_graph.support.supervisor.lines import LineReader
from frx_graph.support.supervisor.process import Stream

_PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""
_GONE_SECONDS = 5.0
_POLL_SECONDS = 0.01


class GuardedProcess:
    """A workload behind its guard. Signals sent before `start` reach it once it runs. After `close`, the guard ends the
    remaining processes."""

    def __init__(self) -> None:
        control_read, control = os.pipe()
        self._control: int | None = control
        self._status, status_write = os.pipe()
        self._said = LineReader(self._status)
        self._theirs: tuple[int, ...] = (control_read, status_write)

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
            return subprocess.Popen(
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
            for descriptor in self._theirs:
                os.close(descriptor)
            self._theirs = ()

    def send(self, number: int) -> None:
        """Send a signal to the workload; SIGKILL, SIGSTOP and SIGCONT reach all that it has started."""
        # The guard may have ended with the workload.
        with contextlib.suppress(OSError):
            if self._control is not None:
                os.write(self._control, bytes([number]))

    @property
    def silent(self) -> bool:
        """True if the guard has gone."""
        return self._said.ended

    def read_words(self, seconds: float) -> list[str]:
        """Return the words of the guard's next line; none if there is none within `seconds`."""
        line = self._said.read_line(seconds)
        return [] if line is None else line.decode().split()

    def close(self) -> None:
        """Close the connection."""
        if self._control is not None:
            control, self._control = self._control, None
            os.close(control)
            os.close(self._status)
            for descriptor in self._theirs:
                os.close(descriptor)
            self._theirs = ()


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
    while time.monotonic() < deadline:
        orphans = [child for child in _list_children() if child.pid not in spared]
        if not orphans:
            return
        for orphan in orphans:
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
