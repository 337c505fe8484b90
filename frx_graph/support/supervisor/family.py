"""Measure the memory of a process and its descendants, even outside the session, and end them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable

import psutil

from frx_graph.support.supervisor.process import Leader, signal_group, wait_for_exit

MARK = "FRX_ARM"
"""Environment variable of all processes of one family. It finds those that have left the session."""
_GONE_SECONDS = 5.0
"""Seconds after which ending a family is given up."""
_POLL_SECONDS = 0.01
_UNREADABLE = (OSError, psutil.Error)
"""Raised for a process that ends while it is looked at. psutil lets `FileNotFoundError` and `ProcessLookupError`
through."""


class ProcessFamily:
    """The family of `leader`, which was started in its own session with `mark` as its `MARK`.

    Raises `psutil.Error` or `OSError` if it cannot be looked at.
    """

    def __init__(self, leader: Leader, mark: str) -> None:
        self._leader = leader
        self._mark = mark
        self._seen = {leader.pid: psutil.Process(leader.pid)}

    @property
    def pid(self) -> int:
        """The process id of the leader."""
        return self._leader.pid

    def measure_memory(self) -> int:
        """Return the resident memory of all of them. Memory that forked processes share counts once for each.

        Descendants of the leader are remembered, so that they are found when they have lost their parent.
        """
        with contextlib.suppress(*_UNREADABLE):
            self._seen |= {child.pid: child for child in self._seen[self.pid].children(recursive=True)}
        return self._sum(lambda process: int(process.memory_info().rss))

    def measure_own_memory(self) -> int:
        """Return the same, but split shared memory among those that share it (`Pss` in Linux).

        The kernel walks all pages for it, and holds up the process meanwhile: do not call it often.
        """
        return self._sum(_measure_own_memory)

    def _sum(self, measure: Callable[[psutil.Process], int]) -> int:
        used = 0
        for process in self._seen.values():
            with contextlib.suppress(*_UNREADABLE):
                used += measure(process)
        return used

    def wait_for_leader(self, seconds: float) -> bool:
        """Return whether the leader ends within `seconds`. It is not reaped, so its number cannot be reused."""
        return wait_for_exit(self._leader, seconds)

    def reap_leader(self) -> int:
        """Reap a leader that has ended, and return its exit code; a signal's number is negative."""
        self._find_members()
        return self._leader.wait()

    def end(self, patience: float) -> None:
        """Send SIGTERM to all of them, and SIGKILL `patience` seconds later; return when they are gone."""
        deadline = time.monotonic() + _GONE_SECONDS
        self._find_members()
        self._signal(signal.SIGTERM)
        self.wait_for_leader(patience)
        self._find_members()
        while self._signal(signal.SIGKILL) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._leader.wait(max(0.0, deadline - time.monotonic()))

    def _find_members(self) -> None:
        """Remember the leader's descendants, and orphans by their session or their mark."""
        self.measure_memory()
        # While the leader is not waited for, no other session can have its number.
        if self._leader.returncode is not None:
            return
        # Not `process_iter`: an error for one process would end the iteration.
        with contextlib.suppress(*_UNREADABLE):
            for number in psutil.pids():
                with contextlib.suppress(*_UNREADABLE):
                    process = psutil.Process(number)
                    if os.getsid(number) == self.pid or process.environ().get(MARK) == self._mark:
                        self._seen[number] = process

    def _signal(self, number: signal.Signals) -> bool:
        """Signal the living members, and return True if there was one. A reused process id gets no signal."""
        signal_group(self._leader, number)
        alive = [process for process in self._seen.values() if _is_alive(process)]
        for process in alive:
            with contextlib.suppress(*_UNREADABLE):
                process.send_signal(number)
        return bool(alive)


def _is_alive(process: psutil.Process) -> bool:
    """Return False for a zombie, and for a process whose number was reused."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return False
    except _UNREADABLE:
        # Unknown, for example if this process may open no more files. One signal too many does no harm.
        return True


def _measure_own_memory(process: psutil.Process) -> int:
    with contextlib.suppress(*_UNREADABLE):
        if (pss := getattr(process.memory_full_info(), "pss", None)) is not None:
            return int(pss)
    # Other systems, and processes of other users, only give resident memory.
    return int(process.memory_info().rss)
