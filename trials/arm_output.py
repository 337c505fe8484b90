"""What an arm prints: how much, and the end of it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import IO

_TAIL_BYTES = 16 * 1024
_CHUNK = 64 * 1024
_REST_SECONDS = 0.5


class ArmOutput:
    """Reads `stream` to its end, in a thread. Raises `RuntimeError` where there can be no more threads."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.printed = 0
        """Bytes so far."""
        self._tail: deque[bytes] = deque()
        self._reader = threading.Thread(target=self._drain, args=(stream,), daemon=True)
        self._reader.start()

    def text(self) -> str:
        """The end of it."""
        return b"".join(self._tail)[-_TAIL_BYTES:].decode(errors="replace")

    def join(self) -> None:
        """Wait for the rest, of an arm that has ended; not for long, as others may hold its output open."""
        self._reader.join(_REST_SECONDS)

    def _drain(self, stream: IO[bytes]) -> None:
        kept = 0
        with contextlib.suppress(OSError, ValueError), stream:
            while chunk := os.read(stream.fileno(), _CHUNK):
                self.printed += len(chunk)
                self._tail.append(chunk)
                kept += len(chunk)
                while kept - len(self._tail[0]) > _TAIL_BYTES:
                    kept -= len(self._tail.popleft())
