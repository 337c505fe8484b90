"""Let a worker analyse the files of a request, and turn errors into problems."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final

from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from frx_graph.service.analysis_job import RESULT, AnalysisJob, Done, Failed, OutOfMemory, Refused, ResultForm, Task
from frx_graph.service.http.body_limit import RETRY_SECONDS
from frx_graph.service.http.problem import ProblemError
from frx_graph.service.http.request_log import ServiceMetrics, format_log_line, get_request_number, make_fault_problem
from frx_graph.service.job_folder import JobFolder, make_job_folder
from frx_graph.service.settings import ServiceSettings
from frx_graph.service.worker_pool import QueueFullError, TooSlowError, WorkerDiedError, WorkerPool

_CHUNK: Final = 1 << 18
"""Bytes of an answer that are sent at once, so that a slow client holds no more in memory."""


@dataclass(frozen=True, slots=True)
class Analyst:
    """State that the endpoints share."""

    settings: ServiceSettings
    pool: WorkerPool
    metrics: ServiceMetrics
    log: Callable[[str], None]

    def check_room(self, task: Task) -> None:
        """Raise `ProblemError` if the queue of analyses is full. Called before a large body is received."""
        try:
            self.pool.check_room()
        except QueueFullError as error:
            self.metrics.analyses.labels(task.value, "turned_away").inc()
            raise _make_queue_problem(error) from None

    async def respond(
        self,
        request: Request,
        task: Task,
        fill: Callable[[JobFolder], None],
        *,
        gpu_model: str | None = None,
        labels: tuple[str, str] = ("a", "b"),
        form: ResultForm = ResultForm.JSON,
    ) -> Response:
        """Return the result; `fill` writes the files. Raises `ProblemError`, or `ClientDisconnect` if the client is
        gone."""
        with make_job_folder() as folder:
            await run_sync(fill, folder)
            job = AnalysisJob(
                task=task,
                folder=str(folder.path),
                files=tuple(folder.files),
                labels=labels,
                gpu_model=gpu_model,
                form=form,
            )
            start = perf_counter()
            outcome = "failed"
            try:
                done = await self._ask_while_connected(request, job)
                result = folder.path / RESULT
                if result.stat().st_size > self.settings.result_bytes:
                    raise ProblemError(422, "the result exceeds the size limit", "send fewer or smaller files")
                outcome = "done"
                return _stream_file(result, done.media_type)
            except QueueFullError as error:
                outcome = "turned_away"
                raise _make_queue_problem(error) from None
            except ProblemError as error:
                outcome = "refused" if error.status_code < 500 else "failed"
                raise
            except ClientDisconnect:
                outcome = "given_up"
                raise
            finally:
                self.metrics.analyses.labels(task.value, outcome).inc()
                if outcome != "turned_away":
                    self.metrics.analysis_seconds.labels(task.value).observe(perf_counter() - start)

    async def _ask_while_connected(self, request: Request, job: AnalysisJob) -> Done:
        asked = asyncio.create_task(self._ask(request, job))
        gone = asyncio.create_task(_wait_for_disconnect(request))
        try:
            await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise ClientDisconnect
            return asked.result()
        finally:
            asked.cancel()
            gone.cancel()
            # Wait until the worker is done with the job: the folder is removed next.
            await asyncio.gather(asked, gone, return_exceptions=True)

    async def _ask(self, request: Request, job: AnalysisJob) -> Done:
        try:
            found = await self.pool.run(job)
        except TooSlowError as error:
            raise ProblemError(422, str(error), "send fewer or smaller files, or use the command line") from None
        except WorkerDiedError as error:
            number = get_request_number(request.scope)
            self.log(format_log_line(request=number, fault=str(error), worker=error.how, said=error.said))
            raise make_fault_problem(number, str(error)) from None
        match found:
            case Done():
                return found
            case Refused():
                raise ProblemError(422, found.message, found.hint)
            case OutOfMemory():
                most = self.settings.analysis_bytes
                raise ProblemError(422, f"the analysis needs more memory than {most:,} bytes", "send fewer files")
            case Failed():
                number = get_request_number(request.scope)
                self.log(format_log_line(request=number, fault=found.error, where=found.where))
                raise make_fault_problem(number)


def _make_queue_problem(error: QueueFullError) -> ProblemError:
    return ProblemError(503, error.message, error.hint, {"Retry-After": RETRY_SECONDS})


async def _wait_for_disconnect(request: Request) -> None:
    """Return when the client is gone; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _stream_file(result: Path, media_type: str) -> Response:
    """Return the answer, read while it is sent. The file is open, so its folder may be removed."""
    size = result.stat().st_size
    file = result.open("rb")

    def read_chunks() -> Iterator[bytes]:
        with file:
            yield from iter(partial(file.read, _CHUNK), b"")

    return StreamingResponse(read_chunks(), media_type=media_type, headers={"Content-Length": str(size)})
