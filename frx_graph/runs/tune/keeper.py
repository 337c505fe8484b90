"""Holds one workload: starts it, stops and continues all of its processes at once, and ends them.

Run as a script of its own, `python -I -S keeper.py IN OUT COMMAND...`, which imports nothing but the standard library.
IN and OUT are the numbers of two pipes. Commands come in as lines: `pause`, `resume`, `end SECONDS`; each is answered
by one JSON line. The end of the workload is told without being asked, `{"exit_code": 0}`.

When nobody holds the other end of IN any more, the workload is killed: so it is gone when frx was killed by SIGKILL,
stopped or not. Whatever the workload has started is found, also what has left its group, its session and its parent:
the keeper adopts orphans (PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_STOPPED = frozenset("TtZX")
_POLL_SECONDS = 0.001
_STOPPING_SECONDS = 0.2
"""How long a process that waits for a disk may take to stop; then it is left to stop when it can."""
_GONE_SECONDS = 5.0
_codes: dict[int, int] = {}
"""Exit codes of those that were waited for."""


class _Process(NamedTuple):
    number: int
    group: int
    state: str
    ticks: int
    """Of processor time, with that of children that it has waited for."""


def main() -> None:
    """Until the workload has ended and nobody asks any more."""
    reading, writing, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ending in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(ending, _give_up)
    try:
        workload = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # Where the keeper itself is killed.
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
    except OSError as error:
        _tell(writing, {"error": error.strerror or str(error)})
        return
    _tell(writing, {"pid": workload.pid})
    _serve(workload.pid, reading, writing, woken)


def _give_up(_number: int, _frame: object) -> None:
    _end(0.0)
    os._exit(1)


def _serve(leader: int, reading: int, writing: int, woken: int) -> None:
    ready = select.poll()
    ready.register(reading, select.POLLIN)
    ready.register(woken, select.POLLIN)
    received = b""
    while True:
        for descriptor, _ in ready.poll():
            if descriptor == woken:
                os.read(woken, 4096)
                _reap()
                if leader in _codes:
                    _end(0.0)
                    _tell(writing, {"exit_code": _codes.pop(leader)})
                continue
            chunk = os.read(reading, 4096)
            if not chunk:
                _end(0.0)
                return
            *lines, received = (received + chunk).split(b"\n")
            for line in lines:
                _tell(writing, _answer(leader, line.decode()))


def _answer(leader: int, line: str) -> dict[str, object]:
    command, _, argument = line.partition(" ")
    if command == "resume":
        processes = _descendants()
        at = time.time_ns()
        _signal_all(leader, processes, signal.SIGCONT)
        return {"at_ns": at, "cpu_seconds": _cpu_seconds(processes)}
    if command == "pause":
        at = time.time_ns()
        _signal_all(leader, (), signal.SIGSTOP)
        deadline = time.monotonic() + _STOPPING_SECONDS
        while True:
            processes = _descendants()
            running = [process for process in processes if process.state not in _STOPPED]
            if not running or time.monotonic() >= deadline:
                return {"at_ns": at, "cpu_seconds": _cpu_seconds(processes)}
            for process in running:
                _signal(process.number, signal.SIGSTOP)
            time.sleep(_POLL_SECONDS)
    _end(float(argument))
    return {"ended": True}


def _end(patience: float) -> None:
    """End all of them, after `patience` seconds at most for those that clean up on SIGTERM."""
    deadline = time.monotonic() + patience
    if patience:
        for number in (signal.SIGTERM, signal.SIGCONT):
            for process in _alive():
                _signal(process.number, number)
        while _alive() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    deadline = time.monotonic() + _GONE_SECONDS
    while (alive := _alive()) and time.monotonic() < deadline:
        for process in alive:
            _signal(process.number, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _reap() -> None:
    """Wait for all that have ended, also those that were adopted: nobody else does."""
    with contextlib.suppress(ChildProcessError):
        while True:
            number, status = os.waitpid(-1, os.WNOHANG)
            if not number:
                return
            _codes[number] = os.waitstatus_to_exitcode(status)


def _signal_all(leader: int, processes: tuple[_Process, ...] | list[_Process], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
    for process in processes:
        if process.group != leader:
            _signal(process.number, number)


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def _alive() -> list[_Process]:
    _reap()
    return [process for process in _descendants() if process.state not in "ZX"]


def _descendants() -> list[_Process]:
    """All processes under this one (`man 5 proc_pid_stat`)."""
    children: dict[int, list[_Process]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in brackets may hold anything, brackets and blanks, too.
                fields = (Path(entry.path) / "stat").read_text(errors="replace").rpartition(")")[2].split()
                ticks = sum(int(field) for field in fields[11:15])
                process = _Process(int(entry.name), int(fields[2]), fields[0], ticks)
                children.setdefault(int(fields[1]), []).append(process)
    found: list[_Process] = []
    parents = [os.getpid()]
    while parents:
        born = children.get(parents.pop(), [])
        found += born
        parents += [process.number for process in born]
    return found


def _cpu_seconds(processes: list[_Process]) -> float:
    return sum(process.ticks for process in processes) / os.sysconf("SC_CLK_TCK")


def _tell(writing: int, answer: dict[str, object]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(writing, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
