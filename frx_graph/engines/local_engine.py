"""Jobs one after the other, on this machine."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from frx_graph.engines.engine import Finished, Job, Progress, T
from frx_graph.errors import FrxError


class LocalEngine:
    """An `Engine`."""

    def run(self, jobs: Sequence[Job[T]], progress: Progress) -> Generator[Finished[T]]:
        """In their order."""
        for number, job in enumerate(jobs):
            result: T | FrxError
            try:
                result = job(_with_label(job, progress) if len(jobs) > 1 else progress)
            except FrxError as error:
                result = error
            yield Finished(number, result, None)


def _with_label(job: Job[T], progress: Progress) -> Progress:
    return lambda stage: progress(f"{job.label}: {stage}")
