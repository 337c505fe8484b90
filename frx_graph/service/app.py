"""The service as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from frx_graph.ledger.location import Location
from frx_graph.service.analyst import Analyst
from frx_graph.service.decisions import DecisionBook
from frx_graph.service.endpoints import make_file_route, make_json_routes, make_ledger_routes
from frx_graph.service.http.access import Access, SecurityHeaders
from frx_graph.service.http.body_limit import BodyLimit
from frx_graph.service.http.problem import ProblemError, respond_problem
from frx_graph.service.http.request_log import CONTENT_TYPE, Faults, RequestLog, ServiceMetrics, log_to_stderr
from frx_graph.service.settings import ServiceSettings
from frx_graph.service.web_pages import make_page_routes
from frx_graph.service.worker_pool import WorkerPool
from frx_graph.version import __version__


def create_app(settings: ServiceSettings, ledger: Location, log: Callable[[str], None] = log_to_stderr) -> FastAPI:
    """Return the application; `ledger` is the ledger that it shows. The workers end with the application."""
    pool, metrics = WorkerPool(settings), ServiceMetrics()
    analyst, book = Analyst(settings, pool, metrics, log), DecisionBook(ledger)
    metrics.busy_workers.set_function(lambda: pool.busy)
    metrics.waiting.set_function(lambda: pool.waiting)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await pool.start()
            yield
        finally:
            await pool.close()

    # The framework's own pages load scripts from other sites.
    app = FastAPI(
        title="frx-graph",
        version=__version__,
        summary="Find the bottlenecks of a PyTorch program: traces, runs, kernels.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    for router in (
        make_json_routes(analyst), make_file_route(analyst), make_ledger_routes(book), make_page_routes(analyst, book)
    ):  # fmt: skip
        app.include_router(router)

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", tags=["service"])
    async def healthz() -> dict[str, str]:
        """Report that the service runs."""
        return {"status": "ok", "version": __version__}

    @app.get("/metrics", include_in_schema=False)
    async def prometheus() -> Response:
        return Response(metrics.render_text(), media_type=CONTENT_TYPE)

    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(RequestValidationError, _handle_invalid_request)
    # The middleware added last sees a request first.
    app.add_middleware(Access, settings=settings)
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(Faults, log=log)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestLog, metrics=metrics, log=log)
    return app


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if not isinstance(error, ProblemError):
        error = ProblemError(error.status_code, str(error.detail), headers=error.headers)
    return respond_problem(error, request.scope)


async def _handle_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    invalid = ProblemError(422, f"{where}: {first['msg']}", "GET /openapi.json describes the requests")
    return respond_problem(invalid, request.scope)
