"""One line of JSON for each request, and its figures for Prometheus. Neither holds what was sent."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from time import perf_counter

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frx_graph.service.metrics import ServiceMetrics

UNKNOWN_ROUTE = "-"
_NUMBER = "frx_request_number"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def log_to_stderr(line: str) -> None:
    """Where a service logs."""
    print(line, file=sys.stderr, flush=True)


def log_line(**told: object) -> str:
    """A line of the log, with the time in front."""
    return json.dumps({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **told})


def request_number(scope: Scope) -> str:
    """That of the request, by which its line in the log is found."""
    return str(scope.get(_NUMBER, UNKNOWN_ROUTE))


class RequestLog:
    """ASGI middleware. Each request has a number of its own, which its answer and its line both tell."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics, log: Callable[[str], None]) -> None:
        self._app = app
        self._metrics = metrics
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, number = perf_counter(), secrets.token_hex(8)
        scope[_NUMBER] = number
        status, received, sent = 0, 0, 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def noted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = number
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counted, noted)
        finally:
            # The route's own pattern: a path could be anything, and each would make a time series.
            route = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            seconds = perf_counter() - start
            self._metrics.requests.labels(route, method, str(status)).inc()
            self._metrics.request_seconds.labels(route).observe(seconds)
            line = log_line(
                request=number,
                method=method,
                route=route,
                status=status,
                ms=round(1e3 * seconds, 2),
                bytes_in=received,
                bytes_out=sent,
            )
            self._log(line)
