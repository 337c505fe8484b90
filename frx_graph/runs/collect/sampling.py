"""Samples something in the background, a few lines at a time, into a file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 64 << 20
"""Of samples: a day of eight devices, once a second, takes 60 MB."""
_MOST_OF_TIME: Final = 0.02
"""Of a processor, that sampling takes. Where looking at thousands of processes takes longer, it is done less often."""
_STOP_SECONDS: Final = 2.0
"""Once it is to stop. A driver that hangs must not keep the whole."""


class Sampler:
    """Appends what `take` gives to the file at `path` every `interval_seconds`, and once in the end, until it is
    stopped. A context manager. `problem` says what has ended it before its time."""

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
            self.problem = f"{self._path.name} is not whole: the last sample did not come"

    def _sample(self) -> None:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                self._until_stopped(descriptor)
            finally:
                os.close(descriptor)
        except Exception as error:  # noqa: BLE001 - samples are a thing beside the run, whatever happens to them
            self.problem = f"{self._path.name} is not whole: {error}"

    def _until_stopped(self, descriptor: int) -> None:
        written = 0
        last = False
        while True:
            begin = time.monotonic()
            rows = self._take()
            took = time.monotonic() - begin
            if written + len(rows) > MOST_BYTES:
                self.problem = f"{self._path.name} ends before the run: it has {MOST_BYTES >> 20} MiB"
                return
            # All at once: who is killed leaves no half of a row.
            os.write(descriptor, rows)
            written += len(rows)
            if last:
                return
            last = self._stopped.wait(max(self._interval - took, took / _MOST_OF_TIME))
