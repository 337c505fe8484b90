"""Append samples, such as those of a run's processes, to a file in the background."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

HOST_HEADER = b"timestamp, processes, cpu [%], memory.rss [MiB]\n"
_UNREADABLE = (OSError, psutil.Error)

MOST_BYTES: Final = 64 << 20
"""Size limit of a file of samples: a day of eight devices, once a second, takes 60 MB."""
_MOST_OF_TIME: Final = 0.02
"""Share of a processor that sampling may take. If looking at thousands of processes takes longer, it is done less
often."""
_STOP_SECONDS: Final = 2.0
"""Longest wait for the sampling thread to stop, so that a driver that hangs does not block the run."""


class Sampler:
    """Appends the result of `take` to the file at `path` every `interval_seconds`, and once at the end.

    Use it as a context manager. `problem` says why it ended early.
    """

    def __init__(self, path: Path, interval_seconds: float, take: Callable[[], bytes]) -> None:
        self._path = path
        self._interval = interval_seconds
        self._take = take
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name=f"frx-{path.stem}", daemon=True)
        self.problem: str | None = None

    def start(self) -> None:
        """The first sample is taken at once."""
        self._thread.start()

    def stop(self) -> None:
        """Take the last one."""
        if self._thread.ident is None:
            return
        self._stopped.set()
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            self.problem = f"{self._path.name} is incomplete: the last sample did not arrive"

    def _sample(self) -> None:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                self._sample_until_stopped(descriptor)
            finally:
                os.close(descriptor)
        except Exception as error:  # noqa: BLE001 - the run continues without samples
            self.problem = f"{self._path.name} is incomplete: {error}"

    def _sample_until_stopped(self, descriptor: int) -> None:
        written = 0
        last = False
        while True:
            begin = time.monotonic()
            rows = self._take()
            took = time.monotonic() - begin
            if written + len(rows) > MOST_BYTES:
                self.problem = f"{self._path.name} ends before the run: it has {MOST_BYTES >> 20} MiB"
                return
            # One write, so that a kill leaves no partial row.
            os.write(descriptor, rows)
            written += len(rows)
            if last:
                return
            last = self._stopped.wait(max(self._interval - took, took / _MOST_OF_TIME))


def make_host_reader(ancestor: int, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Callable[[], bytes]:
    """Return a function that gives a row of `HOST_HEADER` for the descendants of `ancestor`. Processor time that a
    process uses between the last sample and its end is not counted."""
    root = psutil.Process(ancestor)
    used_before: dict[int, float] = {}
    last: datetime | None = None

    def read_rows() -> bytes:
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
        # A new process, or one with a reused number, has started since the last sample.
        spent = sum(max(seconds - used_before.get(number, 0.0), 0.0) for number, seconds in used.items())
        elapsed = None if last is None else (moment - last).total_seconds()
        percent = f"{100 * spent / elapsed:.1f}" if elapsed is not None and elapsed > 0 else "[N/A]"
        used_before.clear()
        used_before.update(used)
        last = moment
        when = moment.isoformat(timespec="microseconds")
        return f"{when}, {len(used)}, {percent}, {memory / 2**20:.1f}\n".encode()

    return read_rows
