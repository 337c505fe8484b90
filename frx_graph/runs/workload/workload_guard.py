"""Guard a workload: end all its processes when it or its runner ends.

    python -I -S workload_guard.py CONTROL STATUS PROGRAM [ARGUMENT...]

The guard is a separate program that uses the standard library alone, since its parent may be killed at any moment. It
reads from the descriptor CONTROL. Each byte is a signal for the workload's process group; SIGKILL, SIGSTOP and SIGCONT
go to every process that the workload has started. End of file means that the parent has exited. The guard writes lines
to STATUS:

    started PID                  or `failed ERRNO`, which is the last line
    stopped NS CPU_SECONDS       all processes are stopped; NS (since the epoch) precedes the first stop
    continued NS CPU_SECONDS     all processes continue; NS precedes the first
    ended CODE SECONDS CPU_SECONDS

CODE is the exit code, or minus the signal that ended the workload. The last line is written once all processes that
the workload left behind have ended. CPU_SECONDS is the processor time of all processes so far.

On Linux the guard adopts orphaned processes, so it also finds those that left the group and the session. If the guard
is killed, the workload is killed, too.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""linux/prctl.h"""
_PATIENCE = 1.0
"""Seconds between SIGTERM and SIGKILL for processes that a workload or its parent has left behind."""
_GONE = 5.0
"""Seconds after which a process that SIGKILL does not end is left alone, such as one in a system call that hangs."""
_STANDS = 0.2
"""Seconds that a process may take to stop, as one that waits for a disk; then it is left to stop when it can."""
_POLL, _STOPPING_POLL = 0.01, 0.001
_REPLACED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and programs do not expect to be ignored."""


class Process(NamedTuple):
    """One of the workload's processes."""

    number: int
    state: str
    ticks: int
    """Processor time, with that of children that it has waited for."""


class Guard:
    """Runs `command`, once, and communicates through the descriptors `control` and `status`."""

    def __init__(self, control: int, status: int, command: list[str]) -> None:
        self._control = control
        self._status = status
        self._command = command
        self._child = 0
        self._wait_status: int | None = None
        self._ended_at = 0.0

    def run(self) -> None:
        """Run it; return when no process is left."""
        _call_prctl(_PR_SET_CHILD_SUBREAPER, 1)
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        begin = time.monotonic()
        failure = self._start()
        if failure:
            self._say(f"failed {failure}")
            return
        self._say(f"started {self._child}")
        while self._wait_status is None:
            ready, _, _ = select.select([self._control, woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
            if self._control in ready:
                numbers = os.read(self._control, 64)
                if not numbers:
                    break
                for number in numbers:
                    self._send(number)
            self._reap()
        self._end_descendants()
        if self._wait_status is not None:
            code = os.waitstatus_to_exitcode(self._wait_status)
            self._say(f"ended {code} {self._ended_at - begin!r} {_sum_cpu_seconds([])!r}")

    def _start(self) -> int:
        """Fork the workload, and return the number of the error if that fails, else 0."""
        guard = os.getpid()
        read, write = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.setsid()
                _call_prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                for ignored in _REPLACED:
                    signal.signal(ignored, signal.SIG_DFL)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.set_inheritable(self._control, False)
                os.set_inheritable(self._status, False)
                if os.getppid() == guard:
                    os.execvp(self._command[0], self._command)
            except OSError as error:
                os.write(write, str(error.errno).encode())
            os._exit(127)
        os.close(write)
        with os.fdopen(read, "rb") as said:
            number = said.read()
        # An open copy would keep the reader waiting for more of the workload's output.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        return int(number or 0)

    def _send(self, number: int) -> None:
        # Listing takes long, and a workload that is to stop must stop at once.
        processes = _list_descendants() if number in (signal.SIGKILL, signal.SIGCONT) else []
        at = time.time_ns()
        # A group keeps its number while a process is in it, and the leader is until it is reaped.
        if number != signal.SIGKILL and self._wait_status is None:
            with contextlib.suppress(OSError):
                os.killpg(self._child, number)
        if number == signal.SIGSTOP:
            deadline = time.monotonic() + _STANDS
            while True:
                processes = _list_descendants()
                running = [process for process in processes if process.state not in "Tt"]
                if not running or time.monotonic() >= deadline:
                    break
                _kill(running, signal.SIGSTOP)
                time.sleep(_STOPPING_POLL)
            self._say(f"stopped {at} {_sum_cpu_seconds(processes)!r}")
        elif number in (signal.SIGKILL, signal.SIGCONT):
            _kill(processes, number)
        if number == signal.SIGCONT:
            self._say(f"continued {at} {_sum_cpu_seconds(processes)!r}")

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == 0:
                    return
                if process == self._child:
                    self._wait_status, self._ended_at = status, time.monotonic()

    def _end_descendants(self) -> None:
        """Ask descendants to end, then kill them. Return when there are none."""
        begin = time.monotonic()
        # A stopped process gets a signal when it continues.
        _kill(_list_descendants(), signal.SIGTERM, signal.SIGCONT)
        while left := _list_descendants():
            waited = time.monotonic() - begin
            if waited > _PATIENCE + _GONE:
                return
            if waited > _PATIENCE:
                _kill(left, signal.SIGKILL)
            time.sleep(_POLL)
            # Those that were adopted would stay as zombies.
            self._reap()
        self._reap()

    def _say(self, line: str) -> None:
        # The reader may have gone.
        with contextlib.suppress(OSError):
            os.write(self._status, line.encode() + b"\n")


def _list_descendants() -> list[Process]:
    children = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # proc(5): number, name in parentheses, which may hold any, state, parent; from the 14th on, ticks.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                ticks = sum(map(int, fields[11:15]))
                children[int(fields[1])].append(Process(int(folder.name), fields[0], ticks))
    found = list(children[os.getpid()])
    for process in found:
        found += children[process.number]
    return found


def _sum_cpu_seconds(alive: list[Process]) -> float:
    ended = os.times()
    ticks = sum(process.ticks for process in alive)
    return ticks / os.sysconf("SC_CLK_TCK") + ended.children_user + ended.children_system


def _kill(processes: list[Process], *numbers: int) -> None:
    # A process that only the guard can reap keeps its number. If its parent reaps it, the number may be reused.
    for process in processes:
        for number in numbers:
            with contextlib.suppress(OSError):
                os.kill(process.number, number)


def _call_prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


if __name__ == "__main__":
    Guard(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]).run()
