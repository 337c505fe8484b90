"""The service's worker processes, with limits on running and waiting analyses.

A worker that takes too long, needs too much memory or dies is ended with all its child processes, and another starts at
once. No job is tried twice: a job that ended one worker would end the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import Final

import psutil
from pydantic import TypeAdapter

from frx_graph.errors import FrxError
from frx_graph.service.analysis_job import READY, AnalysisJob, Answer, OutOfMemory
from frx_graph.service.settings import TOKEN_VARIABLE, ServiceSettings
from frx_graph.support.supervisor.process import extend_pythonpath

_ANSWER: TypeAdapter[Answer] = TypeAdapter(Answer)
WORKER: Final[tuple[str, ...]] = ("-m", "frx_graph.service.worker")
"""The module that Python runs."""
_START_SECONDS = 120.0
"""Seconds for a worker's imports, on a busy machine."""
_SPARE_SECONDS = 5.0
"""Seconds after the time limit at which an abandoned worker ends itself."""
_MOST_JOBS = 200
"""Jobs of one worker, so that leaks in libraries do not accumulate."""
_LONGEST_ANSWER = 1 << 20
_LAST_WORDS = 4096
"""Bytes of a worker's standard error to keep."""
_LAST_WORDS_SECONDS = 1.0
_GRACE_SECONDS = 1.0
"""Seconds that an analysis has to end after its client is gone."""
_NO_MEMORY = ("memory allocation of", "std::bad_alloc")
"""Messages of libraries in Rust and C++ that end a process when they cannot allocate memory."""


class QueueFullError(FrxError):
    """The queue of analyses is full; try again later."""


class TooSlowError(FrxError):
    """The analysis did not end in its time."""


class WorkerDiedError(FrxError):
    """A worker died. `how` it ended and its last words (`said`) are for the log."""

    def __init__(self, message: str, how: str = "", said: str = "") -> None:
        super().__init__(message)
        self.how = how
        self.said = said


@dataclass(slots=True)
class _Worker:
    """A slot for one process, which is running, starting, or started on demand."""

    settings: ServiceSettings
    process: asyncio.subprocess.Process | None = None
    """A process that is ready."""
    jobs: int = 0
    closed: bool = False
    _starting: asyncio.Task[None] | None = None
    _said: bytes = b""
    _listening: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if not self.closed and self.process is None and (self._starting is None or self._starting.done()):
            self._starting = asyncio.create_task(self._start())
            # A waiting caller gets the error; otherwise the next call starts another process.
            self._starting.add_done_callback(lambda started: started.cancelled() or started.exception())

    async def get_process(self) -> asyncio.subprocess.Process:
        """Return the process, once it is ready. A caller that stops waiting does not end it."""
        if self.process is not None and self.process.returncode is not None:
            # It ended while idle.
            await self._end(self.process)
        self.begin()
        if self.process is None:
            assert self._starting is not None
            await asyncio.shield(self._starting)
        assert self.process is not None
        return self.process

    async def ask(self, job: AnalysisJob) -> Answer:
        line = job.model_dump_json().encode() + b"\n"
        working = asyncio.create_task(self._run_job(await self.get_process(), line))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            # Most analyses end soon, and a new process takes seconds: a client that hangs up
            # must not cost more than one that waits.
            await asyncio.wait({working}, timeout=_GRACE_SECONDS)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            raise

    async def close(self) -> None:
        self.closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self.process is not None:
            await self._end(self.process)

    async def _start(self) -> None:
        own = {**extend_pythonpath(), "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        # -P: nothing is imported from a job's folder.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", *WORKER),
            *(str(self.settings.analysis_bytes), str(self.settings.analysis_seconds + _SPARE_SECONDS)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE} | own,
            start_new_session=True,
            limit=_LONGEST_ANSWER,
        )
        self.jobs, self._said = 0, b""
        self._listening = asyncio.create_task(self._listen(process))
        try:
            async with asyncio.timeout(_START_SECONDS):
                if await _read_line(process) != READY:
                    raise await self._describe_death(process, "a worker process could not be started")
        except BaseException as error:
            await self._end(process)
            if isinstance(error, TimeoutError):
                raise WorkerDiedError("a worker process was not ready in time") from None
            raise
        self.process = process

    async def _run_job(self, process: asyncio.subprocess.Process, line: bytes) -> Answer:
        assert process.stdin is not None
        fine = False
        try:
            async with asyncio.timeout(self.settings.analysis_seconds):
                process.stdin.write(line)
                await process.stdin.drain()
                answer = await _read_line(process)
            found = _ANSWER.validate_json(answer)
            self.jobs += 1
            fine = self.jobs < _MOST_JOBS and not isinstance(found, OutOfMemory)
            return found
        except TimeoutError:
            seconds = self.settings.analysis_seconds
            raise TooSlowError(f"the analysis was ended: it took longer than {seconds:g} s") from None
        except (OSError, ValueError):
            died = await self._describe_death(process, "the analysis crashed its process")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if any(sign in died.said for sign in _NO_MEMORY):
                return OutOfMemory()
            raise died from None
        finally:
            if not fine:
                await self._end(process)
                self.begin()

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        self.process = None
        # After the wait, another process may reuse its number.
        if process.returncode is None:
            with contextlib.suppress(psutil.Error, OSError):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.Error, OSError):
                        child.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    async def _describe_death(self, process: asyncio.subprocess.Process, message: str) -> WorkerDiedError:
        """Return the error of a process that ended by itself, with its exit code and last words."""
        assert self._listening is not None
        how = "its answer is not valid"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                how = f"exit code {await process.wait()}"
                await asyncio.shield(self._listening)
        return WorkerDiedError(message, how, self._said.decode(errors="replace"))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Read standard error to the end, and keep the last part."""
        assert process.stderr is not None
        while said := await process.stderr.read(_LONGEST_ANSWER):
            self._said = (self._said + said)[-_LAST_WORDS:]


async def _read_line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await process.stdout.readline()


@dataclass(slots=True)
class WorkerPool:
    """`settings.workers` processes, and `settings.queue` jobs that wait for one."""

    settings: ServiceSettings
    waiting: int = 0
    _all: list[_Worker] = field(default_factory=list)
    _idle: asyncio.Queue[_Worker] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self._all = [_Worker(self.settings) for _ in range(self.settings.workers)]
        for worker in self._all:
            self._idle.put_nowait(worker)

    @property
    def busy(self) -> int:
        """The number of workers with a job."""
        return len(self._all) - self._idle.qsize()

    def check_room(self) -> None:
        """Raise `QueueFullError` if no more analyses may wait."""
        if self._idle.empty() and self.waiting >= self.settings.queue:
            raise QueueFullError("the queue of analyses is full", "try again")

    async def start(self) -> None:
        """Start all processes, so that the first request does not wait."""
        await asyncio.gather(*(worker.get_process() for worker in self._all))

    async def run(self, job: AnalysisJob) -> Answer:
        """Return a worker's answer. Raises `QueueFullError`, `TooSlowError`, `WorkerDiedError`."""
        self.check_room()
        self.waiting += 1
        try:
            worker = await self._idle.get()
        finally:
            self.waiting -= 1
        try:
            return await worker.ask(job)
        finally:
            self._idle.put_nowait(worker)

    async def close(self) -> None:
        """End all processes at once."""
        await asyncio.gather(*(worker.close() for worker in self._all))
