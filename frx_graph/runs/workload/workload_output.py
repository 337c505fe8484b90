"""Read a workload's output in a thread: pass it on at once, and keep it in a log.

Bytes are neither decoded nor buffered. The order of writes across the two streams is not known.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

MOST_KEPT: Final = 256 << 20
"""Bytes of output that are kept from its start on. A program that floods its output for a day would fill the disk."""
MOST_TAIL: Final = 1 << 20
"""Bytes kept from the end of the output, where a program prints why it failed."""

_CHUNK = 1 << 16
"""Bytes: what a pipe holds."""
_POLL_SECONDS = 0.1


class WorkloadLog:
    """Writes to a new file at `path`. Raises `OSError` if it cannot be created; `problem` reports later write errors,
    such as a full disk."""

    def __init__(self, path: Path, most: int = MOST_KEPT, most_tail: int = MOST_TAIL) -> None:
        self._file = path.open("wb", buffering=0)
        self._room = most
        self._most_tail = most_tail
        self._tail = bytearray()
        self._left_out = 0
        self.problem: str | None = None

    def write(self, chunk: bytes) -> None:
        """Write at once, so that nothing is lost if this process ends."""
        kept = chunk[: self._room]
        self._room -= len(kept)
        self._put(kept)
        self._tail += chunk[len(kept) :]
        surplus = max(0, len(self._tail) - self._most_tail)
        del self._tail[:surplus]
        self._left_out += surplus

    def close(self) -> None:
        """Write the end of the output, behind a line that says how much is left out."""
        if self._left_out:
            self._put(b"\n[frx: %d bytes of output are left out here]\n" % self._left_out)
        self._put(bytes(self._tail))
        self._file.close()
        if self._left_out:
            self.problem = self.problem or f"the log omits {self._left_out} bytes of the workload's output"

    def _put(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        try:
            while view and self.problem is None:
                view = view[os.write(self._file.fileno(), view) :]
        except OSError as error:
            self.problem = f"the workload's output is not kept from some point on: {error.strerror or error}"
        except ValueError:
            # It was closed before all of the output was read.
            self.problem = "the end of the workload's output is not kept"


class WorkloadOutput:
    """Reads each stream, passes it on to its descriptor, None for nowhere, and writes it to `log`.

    If the reader has gone, as with `| head`, or the disk is full, the stream is no longer passed on: the workload
    continues.
    """

    def __init__(self, streams: dict[IO[bytes], int | None], log: WorkloadLog | None) -> None:
        self._streams = streams
        self._passed_on = {stream.fileno(): target for stream, target in streams.items()}
        self._log = log
        self._enough, self._stop = os.pipe()
        # It blocks if the reader of our output has stopped, and must not keep this process alive.
        self._thread = threading.Thread(target=self._read_all, name="frx-workload-output", daemon=True)
        self._thread.start()

    def finish(self, impatient: Callable[[], bool]) -> None:
        """Wait after the workload's end until all output is passed on, or the user is `impatient`."""
        # A process that does not belong to the workload may keep the pipe open indefinitely.
        os.write(self._stop, b"x")
        while self._thread.is_alive() and not impatient():
            self._thread.join(_POLL_SECONDS)

    def close(self) -> None:
        """Stop reading."""
        with contextlib.suppress(OSError):
            os.write(self._stop, b"x")
        self._thread.join(_POLL_SECONDS)
        if self._thread.is_alive():
            # The thread waits for a reader that does not read; its descriptors are closed when the process ends.
            return
        for stream in self._streams:
            stream.close()
        os.close(self._enough)
        os.close(self._stop)

    def _read_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            for stream in self._streams:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
            selector.register(self._enough, selectors.EVENT_READ)
            ended = False
            while len(selector.get_map()) > (0 if ended else 1):
                ready = selector.select(0 if ended else None)
                if ended and not ready:
                    return
                for key, _ in ready:
                    if key.fd == self._enough:
                        ended = True
                        selector.unregister(self._enough)
                    elif not self._read(key.fd):
                        selector.unregister(key.fileobj)

    def _read(self, descriptor: int) -> bool:
        """False at the end."""
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return True
        if self._log is not None:
            self._log.write(chunk)
        target = self._passed_on[descriptor]
        if target is not None and not _write_all(target, chunk):
            self._passed_on[descriptor] = None
        return bool(chunk)


def _write_all(target: int, chunk: bytes) -> bool:
    view = memoryview(chunk)
    try:
        while view:
            try:
                view = view[os.write(target, view) :]
            except BlockingIOError:
                # Another process that shares it made it non-blocking.
                select.select([], [target], [])
    except OSError:
        return False
    return True
