"""Log each request as a line of JSON, count it for Prometheus, and answer faults. Bodies appear in none of these."""

from __future__ import annotations

import json
import secrets
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from time import perf_counter
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frx_graph.service.http.problem import ProblemError, respond_problem

UNKNOWN_ROUTE = "-"
_NUMBER = "frx_request_number"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def log_to_stderr(line: str) -> None:
    """Write a line of the log to standard error."""
    print(line, file=sys.stderr, flush=True)


def format_log_line(**told: object) -> str:
    """Return a line of the log that begins with the time."""
    return json.dumps({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **told})


def get_request_number(scope: Scope) -> str:
    """Return the request's number, which identifies its line in the log."""
    return str(scope.get(_NUMBER, UNKNOWN_ROUTE))


class RequestLog:
    """ASGI middleware. Each request has a unique number, in its answer and its line of the log."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics, log: Callable[[str], None]) -> None:
        self._app = app
        self._metrics = metrics
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, and log its outcome."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, number = perf_counter(), secrets.token_hex(8)
        scope[_NUMBER] = number
        status, received, sent = 0, 0, 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def send_noted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = number
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive_counted, send_noted)
        finally:
            # The route's pattern: arbitrary paths would each add a time series.
            route = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            seconds = perf_counter() - start
            self._metrics.requests.labels(route, method, str(status)).inc()
            self._metrics.request_seconds.labels(route).observe(seconds)
            line = format_log_line(
                request=number,
                method=method,
                route=route,
                status=status,
                ms=round(1e3 * seconds, 2),
                bytes_in=received,
                bytes_out=sent,
            )
            self._log(line)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class ServiceMetrics:
    """Metrics of one service. Two services in one process have separate metrics."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        labels = ("route", "method", "status")
        self.requests = Counter("frx_http_requests_total", "Requests that were answered.", labels, registry=registry)
        self.request_seconds = Histogram(
            "frx_http_request_seconds", "From the request's head to the answer's end.", ("route",),
            registry=registry, buckets=_SECONDS,
        )  # fmt: skip
        self.analyses = Counter(
            "frx_analyses_total", "Analyses by how they ended.", ("task", "outcome"), registry=registry
        )
        self.analysis_seconds = Histogram(
            "frx_analysis_seconds", "Of an analysis with its wait.", ("task",), registry=registry, buckets=_SECONDS
        )
        self.busy_workers = Gauge("frx_workers_busy", "Workers with an analysis.", registry=registry)
        self.waiting = Gauge("frx_analyses_waiting", "Analyses that wait for a worker.", registry=registry)

    def render_text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


_FRAMES: Final = 8
"""Number of innermost frames of a traceback to log."""
_NOBODY_THERE: Final = 499
"""Only for the log: the client is gone and gets no answer (nginx's code)."""


class Faults:
    """ASGI middleware. The text of an error is not logged: it may quote the request."""

    def __init__(self, app: ASGIApp, log: Callable[[str], None]) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, and log its outcome."""
        begun = False

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except ClientDisconnect:
            await Response(status_code=_NOBODY_THERE)(scope, receive, send)
        except Exception as error:
            if scope["type"] != "http":
                raise
            where = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
            number = get_request_number(scope)
            self._log(format_log_line(request=number, fault=type(error).__name__, where=where[-_FRAMES:]))
            if begun:
                # Close the connection: half an answer must not look complete.
                raise
            await respond_problem(make_fault_problem(number), scope)(scope, receive, send)


def make_fault_problem(number: str, what: str = "a fault of frx-graph") -> ProblemError:
    """Return the problem of an internal error, with the request's number."""
    return ProblemError(500, f"{what}; request {number} in the log of the service")
