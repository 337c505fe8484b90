"""Define engines, which run a matrix of jobs with the same results on every machine, and the local engine."""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from frx_graph.errors import FrxError, TrialError

Progress: TypeAlias = Callable[[str], None]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class EngineName(enum.StrEnum):
    """The values of `--engine`."""

    LOCAL = "local"
    RAY = "ray"


class Holding(enum.StrEnum):
    """The part of a node that a job holds exclusively, so that no other job disturbs its measurements."""

    CORES = "cores"
    GPU = "gpu"
    """One GPU, and the node's processors divided by its number of GPUs."""
    NODE = "node"


class Job(Protocol[T_co]):
    """A trial with all its inputs, which can be pickled for another process. It raises `FrxError` if it fails."""

    @property
    def label(self) -> str:
        """A short description."""

    def __call__(self, progress: Progress) -> T_co:
        """Run it, both arms on the machine that this is called on."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of the attempt whose result counts."""

    attempt: str
    node: str
    address: str
    lost: tuple[str, ...]
    """Earlier attempts without a result, each with its id and the reason. Their measurements do not count."""


class NowhereError(TrialError):
    """A job was not run, since no node may run it now. A later run may find one."""


@dataclass(frozen=True, slots=True)
class JobResult(Generic[T]):
    """The result of one job, reported once."""

    number: int
    """The job's, in the order in which they were given."""
    result: T | FrxError
    placed: Placement | None
    """None: on this machine, or nowhere."""


class Engine(Protocol):
    """Runs jobs. Closing the generator ends those that run, with all their processes."""

    def run(self, jobs: Sequence[Job[T]], progress: Progress) -> Generator[JobResult[T]]:
        """Yield each result as soon as it arrives, in any order."""


class LocalEngine:
    """An `Engine` that runs jobs one after the other in this process."""

    def run(self, jobs: Sequence[Job[T]], progress: Progress) -> Generator[JobResult[T]]:
        """Run the jobs in order."""
        for number, job in enumerate(jobs):
            result: T | FrxError
            try:
                result = job(_add_label(job, progress) if len(jobs) > 1 else progress)
            except FrxError as error:
                result = error
            yield JobResult(number, result, None)


def _add_label(job: Job[T], progress: Progress) -> Progress:
    return lambda stage: progress(f"{job.label}: {stage}")
