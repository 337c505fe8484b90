"""The endpoints that take files as text in JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, RootModel
from starlette.responses import JSONResponse, Response

from frx_graph.advice import Advice
from frx_graph.evidence.file_kind import FileKind
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.schema import LedgerDocument
from frx_graph.reports.kernels.compare_parts import CompareResult
from frx_graph.reports.kernels.cuda_document import CudaDocument
from frx_graph.reports.kernels.kernel_document import NcuDocument, NcuResult
from frx_graph.reports.kernels.ptx_document import PtxDocument, PtxResult
from frx_graph.reports.kernels.reconcile_document import ReconcileResult
from frx_graph.reports.runs.run_parts import RunDocument
from frx_graph.reports.runs.trace_parts import TraceDocument
from frx_graph.service.analysis_job import Task
from frx_graph.service.analyst import Analyst
from frx_graph.service.decisions import MOST_EVENTS, DecisionBook, Decisions
from frx_graph.service.http import problem
from frx_graph.service.http.problem import Problem
from frx_graph.service.http.requests import (
    CompareRequest,
    CompareSide,
    NcuRequest,
    PtxRequest,
    ReconcileRequest,
    StaticInspectRequest,
)
from frx_graph.service.job_folder import JobFolder
from frx_graph.service.static_inspection import StaticInspection
from frx_graph.service.uploads import FORM_BODY, form_of


def json_endpoints(analyst: Analyst) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["kernels"])

    @router.post("/cuda/static-inspect", responses=answers(StaticInspection), response_class=Response)
    async def static_inspect(http: Request, request: StaticInspectRequest) -> Response:
        """Inspect CUDA source without compiling it."""

        def fill(folder: JobFolder) -> None:
            for file in request.files:
                folder.add_text(file.filename, file.content, FileKind.CUDA)

        return await analyst.response(http, Task.CUDA, fill, gpu_model=request.gpu_model)

    @router.post("/ncu/analyze", responses=answers(NcuResult), response_class=Response)
    async def analyze_ncu(http: Request, request: NcuRequest) -> Response:
        """What an export of Nsight Compute says of its kernels."""
        return await analyst.response(
            http,
            Task.NCU,
            lambda folder: folder.add_text("ncu.csv", request.csv_text, FileKind.NCU_CSV),
            gpu_model=request.gpu_model,
        )

    @router.post("/ptx/analyze", responses=answers(PtxResult), response_class=Response)
    async def analyze_ptx(http: Request, request: PtxRequest) -> Response:
        """What PTX says of its kernels."""
        return await analyst.response(
            http,
            Task.PTX,
            lambda folder: folder.add_text("kernel.ptx", request.ptx_text, FileKind.PTX),
            gpu_model=request.gpu_model,
        )

    @router.post("/compare", responses=answers(CompareResult), response_class=Response)
    async def compare(http: Request, request: CompareRequest) -> Response:
        """Which of two implementations is better, by which evidence, and what is not known."""

        def fill(folder: JobFolder) -> None:
            _add_side(folder, request.a, "a")
            _add_side(folder, request.b, "b")

        labels = request.a.label or "a", request.b.label or "b"
        return await analyst.response(http, Task.COMPARE, fill, gpu_model=request.gpu_model, labels=labels)

    @router.post("/reconcile", responses=answers(ReconcileResult), response_class=Response)
    async def reconcile(http: Request, request: ReconcileRequest) -> Response:
        """What several layers of evidence on one program say together."""

        def fill(folder: JobFolder) -> None:
            if request.static is not None:
                (file,) = request.static.files
                folder.add_text(file.filename, file.content, FileKind.CUDA)
            if request.ptx is not None:
                folder.add_text("kernel.ptx", request.ptx.ptx_text, FileKind.PTX)
            if request.ncu is not None:
                folder.add_text("ncu.csv", request.ncu.csv_text, FileKind.NCU_CSV)
            if request.profiler is not None:
                folder.add_text("trace.json", request.profiler.trace_text, FileKind.TRACE)

        return await analyst.response(http, Task.RECONCILE, fill, gpu_model=request.gpu_model)

    return router


def _add_side(folder: JobFolder, side: CompareSide, name: Literal["a", "b"]) -> None:
    if side.cuda_source is not None:
        folder.add_text(f"{name}.cu", side.cuda_source, FileKind.CUDA, name)
    if side.ptx_text is not None:
        folder.add_text(f"{name}.ptx", side.ptx_text, FileKind.PTX, name)
    if side.ncu_csv is not None:
        folder.add_text(f"{name}.csv", side.ncu_csv, FileKind.NCU_CSV, name)


_PROBLEMS = {
    400: "the body is no JSON, or no form",
    404: "there is none of that number",
    401: "the token is missing, or not the service's",
    403: "a browser sends it for another site's page",
    408: "the body did not arrive in time",
    413: "the body is larger than it may be",
    421: "the service is not asked by its own name",
    422: "what was sent cannot be analysed",
    500: "a fault of frx-graph",
    503: "as much waits, or is held, as may: see Retry-After",
}


def answers(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of an endpoint whose result is a `model`."""
    return {
        200: {"model": model, "description": "what was found"},
        **problems(*(code for code in _PROBLEMS if code != 404)),
    }


def problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The same of the errors alone."""
    schema = Problem.model_json_schema()
    return {
        code: {"description": _PROBLEMS[code], "content": {problem.MEDIA_TYPE: {"schema": schema}}} for code in codes
    }


class FileResult(RootModel[TraceDocument | RunDocument | NcuDocument | PtxDocument | CudaDocument | Advice]):
    """What was found, under the mode of the file's kind; of advice, the advice."""


def file_endpoint(analyst: Analyst) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["files"])

    @router.post(
        "/analyze", responses=answers(FileResult), response_class=Response, openapi_extra={"requestBody": FORM_BODY}
    )
    async def analyze(request: Request) -> Response:
        """What a file shows: a torch.profiler trace, the zip of a run, an Nsight Compute export or report, PTX, CUDA
        source, or advice."""
        analyst.check_room(Task.FILE)
        async with form_of(request, two=False) as form:
            return await analyst.response(request, Task.FILE, form.fill, gpu_model=form.gpu_model)

    return router


LAST_POSITION = 2**31 - 1
"""Of the column that positions are kept in."""
Position = Annotated[int, Path(ge=1, le=LAST_POSITION)]
Before = Annotated[int | None, Query(ge=1, le=LAST_POSITION, description="only events before this one")]
Signature = Annotated[str | None, Query(pattern="^[0-9a-f]{16}$", description="only this graph")]


def ledger_endpoints(book: DecisionBook) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/ledger", tags=["ledger"])

    @router.get("/events", responses=answers(LedgerDocument), response_class=Response)
    async def events(
        signature: Signature = None,
        kind: Kind | None = None,
        before: Before = None,
        limit: Annotated[int, Query(ge=1, le=MOST_EVENTS)] = 20,
    ) -> Response:
        """The last decisions, oldest first; of one graph, what stands for it, too."""

        def asked() -> dict[str, Any]:
            return book.document(book.last(signature=signature, kind=kind, before=before, limit=limit), signature)

        return JSONResponse(await book.read(asked))

    @router.get("/events/{position}", responses={**answers(LedgerDocument), **problems(404)}, response_class=Response)
    async def event(position: Position) -> Response:
        """One decision."""
        found, _ = await book.read(lambda: book.at(position))
        return JSONResponse(book.document(Decisions((found,), 1, None)))

    return router
