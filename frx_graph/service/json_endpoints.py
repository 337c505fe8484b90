"""The endpoints that take files as text in JSON."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from frx_graph.evidence.file_kind import FileKind
from frx_graph.reports.kernels.compare_parts import CompareResult
from frx_graph.reports.kernels.kernel_document import NcuResult
from frx_graph.reports.kernels.ptx_document import PtxResult
from frx_graph.reports.kernels.reconcile_document import ReconcileResult
from frx_graph.service.analysis_job import Task
from frx_graph.service.analyst import Analyst
from frx_graph.service.http.openapi import answers
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
