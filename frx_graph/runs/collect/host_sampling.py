"""What the processes of a run take of the host: processors and memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime

import psutil

HEADER = b"timestamp, processes, cpu [%], memory.rss [MiB]\n"
_UNREADABLE = (OSError, psutil.Error)


def host_rows(ancestor: int, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Callable[[], bytes]:
    """Gives a row of `HEADER` each time that it is called, of the processes that descend from `ancestor`. What a
    process has used of a processor between the last sample and its end is not counted."""
    root = psutil.Process(ancestor)
    used_before: dict[int, float] = {}
    last: datetime | None = None

    def rows() -> bytes:
        nonlocal last
        try:
            processes = root.children(recursive=True)
        except _UNREADABLE:
            return b""
        if not processes:
            return b""
        moment = now()
        memory, used = 0, {}
        for process in processes:
            with contextlib.suppress(*_UNREADABLE), process.oneshot():
                times = process.cpu_times()
                memory += process.memory_info().rss
                used[process.pid] = times.user + times.system
        # One that is new has begun since; a number that has come again, too.
        spent = sum(max(seconds - used_before.get(number, 0.0), 0.0) for number, seconds in used.items())
        elapsed = None if last is None else (moment - last).total_seconds()
        percent = f"{100 * spent / elapsed:.1f}" if elapsed is not None and elapsed > 0 else "[N/A]"
        used_before.clear()
        used_before.update(used)
        last = moment
        when = moment.isoformat(timespec="microseconds")
        return f"{when}, {len(used)}, {percent}, {memory / 2**20:.1f}\n".encode()

    return rows
