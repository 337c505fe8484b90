"""Close connections that send no request head in time, or do not read the answer; lose no last answer.

The server has no time limit for either. `BodyLimit` has the limit for bodies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from frx_graph.service.http.request_log import format_log_line
from frx_graph.service.settings import ServiceSettings

_LOGGING: Final[dict[str, Any]] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "frx_graph.service.http.connection.JsonLine"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False}},
}
_LONGEST_HEAD = 1 << 16
"""Largest request line with headers, in bytes."""
_LINGERING_SECONDS: Final = 5.0
_LINGERING_BYTES: Final = 16 << 20
"""Bytes to discard in all. A client that sends more is not reading."""


class JsonLine(logging.Formatter):
    """Formats the server's own messages as one line of JSON, without the text of errors, which may hold a body."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        error = record.exc_info[0] if record.exc_info is not None else None
        return format_log_line(
            server=record.getMessage().strip(), **({} if error is None else {"fault": error.__name__})
        )


class LingeringTransport:
    """Transport whose `close` lets the other side read the answer first, if `unread()`; then calls `answered()`.

    Closing with unread bytes resets the connection, and a reset discards data that the other side has not read yet. A
    client still sending a refused body would lose the answer with the reason (RFC 9112, 9.6).
    """

    def __init__(self, transport: asyncio.Transport, unread: Callable[[], bool], answered: Callable[[], None]) -> None:
        self._transport = transport
        self._unread = unread
        self._answered = answered
        self._left = _LINGERING_BYTES
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
        self._end = asyncio.get_running_loop().call_later(_LINGERING_SECONDS, self._transport.close)
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


class TimedConnection(H11Protocol):
    """`silence` seconds for a head, and for a part of an answer to be taken."""

    def __init__(self, *args: Any, silence: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._silence = silence
        self._ending: asyncio.TimerHandle | None = None
        """Timer that closes the connection unless a head arrives first."""
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the wait for a head."""
        self._lingering = LingeringTransport(transport, self._is_unread, self._end_request)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Handle a part of a head or a body, or bytes after an answer."""
        if self._lingering.lingers:
            self._lingering.drop(data)
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_head()
        elif self._ending is None and not self.transport.is_closing():
            # Parts do not restart the timer: a client that sends single bytes gets no more time.
            self._await_head()

    def on_response_complete(self) -> None:
        """Leave the wait for the next head to the server's own limit for idle connections."""
        self._cancel_head()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start a timer: the other side does not read its data."""
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(self._silence, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer: the other side reads data again."""
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers."""
        self._cancel_head()
        self._lingering.cancel_timer()
        super().connection_lost(exc)

    def _is_unread(self) -> bool:
        """Return True if the request has not ended, or is invalid."""
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def _end_request(self) -> None:
        """Notify the request in progress that the rest of the body will not arrive."""
        self._cancel_head()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _await_head(self) -> None:
        self._ending = self.loop.call_later(self._silence, self.transport.abort)

    def _cancel_head(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None


def make_server(app: FastAPI, settings: ServiceSettings) -> uvicorn.Server:
    """Return a server of the application for given sockets."""
    protocol: Any = partial(TimedConnection, silence=settings.idle_seconds)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            # Not the faster parser, even if installed: it does not limit the length of a head.
            http=protocol,
            ws="none",
            access_log=False,
            log_config=_LOGGING,
            server_header=False,
            timeout_graceful_shutdown=round(settings.shutdown_seconds),
            h11_max_incomplete_event_size=_LONGEST_HEAD,
        )
    )
