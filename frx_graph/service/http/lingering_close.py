"""Close a connection without losing its last answer.

Closing with unread bytes resets the connection, and a reset discards data that the other side has not read yet. A
client still sending a refused body would lose the answer with the reason (RFC 9112, 9.6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

_SECONDS: Final = 5.0
_BYTES: Final = 16 << 20
"""Bytes to discard in all. A client that sends more is not reading."""


class LingeringTransport:
    """Transport whose `close` lets the other side read the answer first, if `unread()`; then calls `answered()`."""

    def __init__(self, transport: asyncio.Transport, unread: Callable[[], bool], answered: Callable[[], None]) -> None:
        self._transport = transport
        self._unread = unread
        self._answered = answered
        self._left = _BYTES
        self._end: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def lingers(self) -> bool:
        """True while arriving bytes do not belong to a request."""
        return self._end is not None

    def is_closing(self) -> bool:
        """Return True if no further answer follows."""
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """End the answer; called again, end the connection."""
        if self.is_closing() or not self._unread():
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:
            # The other side is gone; the next byte would show it.
            self._transport.abort()
            return
        self._end = asyncio.get_running_loop().call_later(_SECONDS, self._transport.close)
        # Reading is paused if the body arrived faster than it was read.
        self._transport.resume_reading()
        self._answered()

    def drop(self, data: bytes) -> None:
        """Discard arriving bytes; close after too many."""
        self._left -= len(data)
        if self._left < 0:
            self._transport.close()

    def cancel_timer(self) -> None:
        """Clean up after the connection."""
        if self._end is not None:
            self._end.cancel()
