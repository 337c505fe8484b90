"""The endpoint that takes a file as it is, whatever it is."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import RootModel
from starlette.responses import Response

from frx_graph.advice import Advice
from frx_graph.reports.kernels.cuda_document import CudaDocument
from frx_graph.reports.kernels.kernel_document import NcuDocument
from frx_graph.reports.kernels.ptx_document import PtxDocument
from frx_graph.reports.runs.run_parts import RunDocument
from frx_graph.reports.runs.trace_parts import TraceDocument
from frx_graph.service.analysis_job import Task
from frx_graph.service.analyst import Analyst
from frx_graph.service.http.openapi import answers
from frx_graph.service.uploads import FORM_BODY, form_of


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
