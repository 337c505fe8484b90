"""What an arm prints: how much, and the end of it."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque
from typing import IO

_TAIL_BYTES = 16 * 1024
_CHUNK = 64 * 1024
_REST_SECONDS = 0.5
_QUOTED_LINES = 3
"""A traceback's last ones say what was raised, and where."""
_QUOTED_CHARACTERS = 160
"""Of a line."""
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colours, and what else steers a terminal, as ECMA-48 writes it."""


def last_lines(text: str) -> str:
    """The last lines of an output that are not empty, in one line. It may be anybody's: all that does not print is left
    out."""
    printable = ("".join(c for c in line if c.isprintable()).strip() for line in _ESCAPE.sub("", text).splitlines())
    last = [line for line in printable if line][-_QUOTED_LINES:]
    return " | ".join(
        line if len(line) <= _QUOTED_CHARACTERS else f"{line[: _QUOTED_CHARACTERS - 1]}…" for line in last
    )


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
