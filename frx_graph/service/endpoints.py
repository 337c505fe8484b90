"""Endpoints for programs: files as text in JSON, files as forms, and the ledger."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, RootModel
from starlette.responses import JSONResponse, Response

from frx_graph.advice import Advice
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.schema import LedgerDocument
from frx_graph.reports.kernels.compare_document import CompareResult
from frx_graph.reports.kernels.cuda_document import CudaDocument
from frx_graph.reports.kernels.kernel_document import NcuDocument, NcuResult
from frx_graph.reports.kernels.ptx_document import PtxDocument, PtxResult
from frx_graph.reports.kernels.reconcile_document import ReconcileResult
from frx_graph.reports.runs.run_document import RunDocument
from frx_graph.reports.runs.trace_document import TraceDocument
from frx_graph.service.analysis_job import Task
from frx_graph.service.analyst import Analyst
from frx_graph.service.decisions import MOST_EVENTS, DecisionBook
from frx_graph.service.http.problem import MEDIA_TYPE, Problem
from frx_graph.service.http.requests import (
    CompareRequest,
    NcuRequest,
    PtxRequest,
    ReconcileRequest,
    StaticInspectRequest,
)
from frx_graph.service.static_inspection import StaticInspection
from frx_graph.service.uploads import FORM_BODY, open_form


def make_json_routes(analyst: Analyst) -> APIRouter:
    """Return the routes that take files as text in JSON."""
    router = APIRouter(tags=["kernels"])

    @router.post("/cuda/static-inspect", responses=describe_answers(StaticInspection), response_class=Response)
    async def static_inspect(http: Request, request: StaticInspectRequest) -> Response:
        """Inspect CUDA source without compiling it."""
        return await analyst.respond(http, Task.CUDA, request.fill, gpu_model=request.gpu_model)

    @router.post("/ncu/analyze", responses=describe_answers(NcuResult), response_class=Response)
    async def analyze_ncu(http: Request, request: NcuRequest) -> Response:
        """Analyse the kernels of an export of Nsight Compute."""
        return await analyst.respond(http, Task.NCU, request.fill, gpu_model=request.gpu_model)

    @router.post("/ptx/analyze", responses=describe_answers(PtxResult), response_class=Response)
    async def analyze_ptx(http: Request, request: PtxRequest) -> Response:
        """Analyse the kernels of PTX."""
        return await analyst.respond(http, Task.PTX, request.fill, gpu_model=request.gpu_model)

    @router.post("/compare", responses=describe_answers(CompareResult), response_class=Response)
    async def compare(http: Request, request: CompareRequest) -> Response:
        """Compare two implementations: the better one, the evidence, and the open questions."""
        labels = request.a.label or "a", request.b.label or "b"
        return await analyst.respond(http, Task.COMPARE, request.fill, gpu_model=request.gpu_model, labels=labels)

    @router.post("/reconcile", responses=describe_answers(ReconcileResult), response_class=Response)
    async def reconcile(http: Request, request: ReconcileRequest) -> Response:
        """Diagnose one program from several layers of evidence."""
        return await analyst.respond(http, Task.RECONCILE, request.fill, gpu_model=request.gpu_model)

    return router


_PROBLEMS = {
    400: "the body is neither JSON nor a form",
    404: "no event has that number",
    401: "the token is missing, or not the service's",
    403: "a page of another site sent the request",
    408: "the body did not arrive in time",
    413: "the body is too large",
    421: "the request does not name this service",
    422: "the files cannot be analysed",
    500: "a fault of frx-graph",
    503: "the service is busy: see Retry-After",
}


def describe_answers(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return `responses=` of an endpoint whose result is a `model`, for the OpenAPI document."""
    return {
        200: {"model": model, "description": "what was found"},
        **describe_problems(*(code for code in _PROBLEMS if code != 404)),
    }


def describe_problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the same for errors alone."""
    schema = Problem.model_json_schema()
    return {code: {"description": _PROBLEMS[code], "content": {MEDIA_TYPE: {"schema": schema}}} for code in codes}


class FileResult(RootModel[TraceDocument | RunDocument | NcuDocument | PtxDocument | CudaDocument | Advice]):
    """Result of an analysis, under the mode of the file's kind. For advice, the advice."""


def make_file_route(analyst: Analyst) -> APIRouter:
    """Return the route that takes a file of any kind."""
    router = APIRouter(tags=["files"])

    @router.post(
        "/analyze",
        responses=describe_answers(FileResult),
        response_class=Response,
        openapi_extra={"requestBody": FORM_BODY},
    )
    async def analyze(request: Request) -> Response:
        """Analyse a torch.profiler trace, the zip of a run, an Nsight Compute export or report, PTX, CUDA source, or
        advice."""
        analyst.check_room(Task.FILE)
        async with open_form(request, two=False) as form:
            return await analyst.respond(request, Task.FILE, form.fill, gpu_model=form.gpu_model)

    return router


LAST_POSITION = 2**31 - 1
"""Largest value of the column of positions."""
Position = Annotated[int, Path(ge=1, le=LAST_POSITION)]
Before = Annotated[int | None, Query(ge=1, le=LAST_POSITION, description="only events before this one")]
Signature = Annotated[str | None, Query(pattern="^[0-9a-f]{16}$", description="only this graph")]


def make_ledger_routes(book: DecisionBook) -> APIRouter:
    """Return the routes that read the ledger."""
    router = APIRouter(prefix="/ledger", tags=["ledger"])

    @router.get("/events", responses=describe_answers(LedgerDocument), response_class=Response)
    async def events(
        signature: Signature = None,
        kind: Kind | None = None,
        before: Before = None,
        limit: Annotated[int, Query(ge=1, le=MOST_EVENTS)] = 20,
    ) -> Response:
        """List the last decisions, oldest first. For one graph, add its active plans."""

        def read_document() -> dict[str, Any]:
            return book.build_document(
                book.read_last(signature=signature, kind=kind, before=before, limit=limit), signature
            )

        return JSONResponse(await book.read(read_document))

    @router.get(
        "/events/{position}",
        responses={**describe_answers(LedgerDocument), **describe_problems(404)},
        response_class=Response,
    )
    async def event(position: Position) -> Response:
        """Show one decision."""
        return JSONResponse(await book.read(lambda: book.build_document(book.read_one(position))))

    return router
