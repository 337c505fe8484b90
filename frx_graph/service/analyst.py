"""Has a worker analyse the files of a request, and turns whatever goes wrong into a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from anyio.to_thread import run_sync
from starlette.responses import Response

from frx_graph.service.analysis_job import RESULT, AnalysisJob, Done, Failed, Form, OutOfMemory, Refused, Task
from frx_graph.service.body_limit import RETRY_SECONDS
from frx_graph.service.job_folder import JobFolder, job_folder
from frx_graph.service.metrics import ServiceMetrics
from frx_graph.service.problem import ProblemError
from frx_graph.service.settings import ServiceSettings
from frx_graph.service.worker_pool import QueueFullError, TooSlowError, WorkerDiedError, WorkerPool


@dataclass(frozen=True, slots=True)
class Analyst:
    """What the endpoints share."""

    settings: ServiceSettings
    pool: WorkerPool
    metrics: ServiceMetrics

    async def response(
        self,
        task: Task,
        fill: Callable[[JobFolder], None],
        *,
        gpu_model: str | None = None,
        labels: tuple[str, str] = ("a", "b"),
        form: Form = Form.JSON,
    ) -> Response:
        """The result as a response; `fill` puts the files into the job's folder. Raises `ProblemError`."""
        with job_folder() as folder:
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
                done = await self._ask(job)
                result = folder.path / RESULT
                if result.stat().st_size > self.settings.result_bytes:
                    raise ProblemError(422, "the result is larger than may be sent", "analyse less at once")
                text = await run_sync(result.read_bytes)
                outcome = "done"
                return Response(text, media_type=done.media_type)
            except ProblemError as error:
                outcome = "refused" if error.status_code < 500 else "failed"
                raise
            finally:
                self.metrics.analyses.labels(task.value, outcome).inc()
                self.metrics.analysis_seconds.labels(task.value).observe(perf_counter() - start)

    async def _ask(self, job: AnalysisJob) -> Done:
        try:
            found = await self.pool.run(job)
        except QueueFullError as error:
            raise ProblemError(503, str(error), "try again", {"Retry-After": RETRY_SECONDS}) from None
        except TooSlowError as error:
            raise ProblemError(422, str(error), "analyse less at once, or with the command line") from None
        except WorkerDiedError as error:
            raise ProblemError(500, str(error), "analyse it with the command line, which says more") from None
        match found:
            case Done():
                return found
            case Refused():
                raise ProblemError(422, found.message, found.hint)
            case OutOfMemory():
                most = self.settings.analysis_bytes
                raise ProblemError(422, f"the analysis needs more memory than {most:,} bytes", "analyse less at once")
            case Failed():
                raise ProblemError(500, f"the analysis failed: {found.error}", "this is a fault of frx-graph")
