"""Limit the received size and the duration of a request's body, and the size of all bodies together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frx_graph.service.http.problem import ProblemError, respond_problem
from frx_graph.service.settings import ServiceSettings

RETRY_SECONDS = "2"
FILE_ROUTES = frozenset({"/analyze", "/report"})
"""Routes whose bodies go to disk as they arrive; all other bodies stay in memory."""


class BodyLimit:
    """ASGI middleware. `receive` raises a `ProblemError` for a body that is too long."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self._app = app
        self._settings = settings
        self._held = {True: 0, False: 0}
        """Bytes of bodies with files, and of other bodies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request with a limited body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # By route: a request that claims to bring files must not get a larger limit.
        files = scope["path"] in FILE_ROUTES
        limit = self._settings.upload_bytes if files else self._settings.text_bytes
        said = headers.get("content-length", "0")
        if not said.isdecimal() or int(said) > limit:
            await respond_problem(_make_size_problem(limit), scope)(scope, receive, send)
            return
        deadline = monotonic() + self._settings.body_seconds
        body = _RequestBody(receive, self._settings, limit, self._held, files, deadline)
        any_body = said != "0" or "transfer-encoding" in headers

        async def send_closing(message: Message) -> None:
            if message["type"] == "http.response.start" and any_body and not body.complete:
                # The server would keep reading to the end of the body.
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        try:
            await self._app(scope, body.receive, send_closing)
        finally:
            self._held[files] -= body.size


@dataclass(slots=True)
class _RequestBody:
    """One body, as it arrives."""

    _receive: Receive
    _settings: ServiceSettings
    _limit: int
    _held: dict[bool, int]
    _files: bool
    _deadline: float
    complete: bool = False
    size: int = 0

    async def receive(self) -> Message:
        """Return the next part of the body."""
        if self.complete:
            # After the body only the disconnect message can follow.
            return await self._receive()
        left = min(self._settings.idle_seconds, self._deadline - monotonic())
        try:
            async with asyncio.timeout(left):
                message = await self._receive()
        except TimeoutError:
            raise ProblemError(408, "the body did not arrive in time") from None
        part = len(message.get("body", b""))
        self.size += part
        self._held[self._files] += part
        self.complete = not message.get("more_body", False)
        if self.size > self._limit:
            raise _make_size_problem(self._limit)
        most = self._settings.held_bytes if self._files else self._settings.held_text_bytes
        if self._held[self._files] > most:
            full = "the service has no room for more request bodies now"
            raise ProblemError(503, full, "try again", {"Retry-After": RETRY_SECONDS})
        return message


def _make_size_problem(limit: int) -> ProblemError:
    large = f"the body is larger than {limit:,} bytes"
    return ProblemError(413, large, "send a smaller one", {"Connection": "close"})
