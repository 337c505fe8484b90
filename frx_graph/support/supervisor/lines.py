"""Read a supervised process's answers by line, and keep the end of the output."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
from collections import deque
from typing import IO

_CHUNK = 1 << 16
"""Bytes that a pipe holds."""
_TAIL_BYTES = 16 * 1024
_REST_SECONDS = 0.5


class LineTooLongError(Exception):
    """A line is longer than it may be."""


class LineReader:
    """Reads lines from a pipe, which it does not close."""

    def __init__(self, descriptor: int, longest: float = math.inf) -> None:
        self.ended = False
        """True once the other end is closed, and no more lines come."""
        self._descriptor = descriptor
        self._longest = longest
        self._lines: deque[bytes] = deque()
        self._begun = b""
        # Not `select`, which fails for descriptors from 1024 on.
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLIN)

    def read_line(self, seconds: float) -> bytes | None:
        """Return the next line without its end; None after `seconds` without one, and at the end of the stream.

        Raises `LineTooLongError` for a line of more than `longest` bytes.
        """
        while not self._lines and not self.ended:
            if not self._ready.poll(1000 * seconds):
                return None
            chunk = os.read(self._descriptor, _CHUNK)
            self.ended = not chunk
            *lines, self._begun = (self._begun + chunk).split(b"\n")
            self._lines.extend(lines)
            if len(self._begun) > self._longest:
                raise LineTooLongError
        return self._lines.popleft() if self._lines else None


class OutputTail:
    """Reads a stream to its end, in a thread, and keeps the last part. Raises `RuntimeError` if no thread can start."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.printed = 0
        """Bytes so far."""
        self._tail = b""
        self._reader = threading.Thread(target=self._drain, args=(stream,), daemon=True)
        self._reader.start()

    def get_tail(self) -> str:
        """Return the last 16 KiB."""
        return self._tail.decode(errors="replace")

    def join(self) -> None:
        """Wait briefly for the rest of an ended process's output. Other processes may hold the output open."""
        self._reader.join(_REST_SECONDS)

    def _drain(self, stream: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError), stream:
            while chunk := os.read(stream.fileno(), _CHUNK):
                self.printed += len(chunk)
                self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
