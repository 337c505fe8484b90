"""Run jobs on a cluster. Each job runs alone in its place, and counts once, by the first attempt that returns.

An attempt that is lost with its node or its process is repeated, on another node if there is one. After a bounded
number of attempts the job is void. Measurements of a lost attempt do not count. Answers from a node that was given up
are ignored.
"""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frx_graph.engines.attempt import Answer, Ending, Task, hash_trial_code
from frx_graph.engines.cluster import Cluster, Node, Running, Share
from frx_graph.engines.engine import Holding, Job, JobResult, NowhereError, Placement, Progress, T
from frx_graph.engines.measuring_slots import MeasuringSlots
from frx_graph.errors import TrialError
from frx_graph.trials.decisive_variables import select_decisive_variables

GONE_SECONDS = 10.0
"""Time after which a gone node is given up. Until then the cluster may report the lost attempts itself."""

MOST_ATTEMPTS = 3
_WAIT_SECONDS = 1.0
"""Seconds between two readings of the list of nodes."""
_NO_NODE_SECONDS = 60.0
"""Seconds without any node to measure on after which the remaining jobs are void. Preempted nodes may come back."""


class GoneNodes:
    """Counts, by `clock`, for how long nodes have been away."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def find_gone(self, wanted: Collection[str], alive: Collection[str]) -> frozenset[str]:
        """Return the ids of `wanted` that have not been `alive` for `GONE_SECONDS`. Counts from call to call."""
        now = self._clock()
        self._since = {node: self._since.get(node, now) for node in wanted if node not in alive}
        return frozenset(node for node, since in self._since.items() if now - since >= GONE_SECONDS)


@dataclass(frozen=True, slots=True)
class _QueuedJob:
    """A job that waits for its start, or for a restart after lost attempts."""

    number: int
    lost: tuple[str, ...] = ()
    avoided: frozenset[str] = frozenset()
    """Nodes where it was lost."""


@dataclass(frozen=True)
class RayEngine:
    """Run jobs in `folder` (None: as Ray sends it) on nodes that have the `environment` (None: any)."""

    cluster: Cluster
    holding: Holding
    folder: Path | None = None
    environment: str | None = None
    clock: Callable[[], float] = time.monotonic

    def run(self, jobs: Sequence[Job[T]], progress: Progress) -> Generator[JobResult[T]]:
        """Yield results as jobs finish."""
        slots = MeasuringSlots(self.cluster, self.holding)
        waiting = deque(_QueuedJob(number) for number in range(len(jobs)))
        running: dict[Running, _QueuedJob] = {}
        gone = GoneNodes(self.clock)
        deadline = self.clock()
        try:
            while waiting or running:
                nodes = self.cluster.list_nodes()
                away = gone.find_gone({one.reservation.node.id for one in running}, {node.id for node in nodes})
                # The cluster may report the attempts on nodes that have gone late, or never.
                lost = [one for one in running if one.reservation.node.id in away]
                if lost:
                    self.cluster.cancel(lost)
                answers = {one: Answer(one.attempt, Ending.LOST, "its node has gone") for one in lost}
                if not answers:
                    if not waiting:
                        slots.release_idle()
                    elif slots.reserve_nodes(nodes):
                        deadline = self.clock() + _NO_NODE_SECONDS
                    elif _are_all_unfit(nodes, slots) or self.clock() >= deadline:
                        while waiting:
                            yield JobResult(waiting.popleft().number, _make_nowhere_error(nodes, slots), None)
                    for job in tuple(waiting):
                        if (place := slots.take(job.avoided)) is not None:
                            waiting.remove(job)
                            task = self._make_task(jobs[job.number], place.share)
                            running[self.cluster.start(place, task)] = job
                    progress(_format_progress(jobs, waiting, running))
                    answers = self._collect_answers(running, slots)
                for one, answer in answers.items():
                    judged: JobResult[T] | _QueuedJob = _judge_answer(one, running.pop(one), answer, slots)
                    if isinstance(judged, JobResult):
                        yield judged
                    else:
                        waiting.append(judged)
        finally:
            try:
                self.cluster.cancel(tuple(running))
            finally:
                slots.close()

    def _make_task(self, job: Job[T], share: Share) -> Task:
        return Task(
            uuid.uuid4().hex[:12],
            pickle.dumps(job),
            hash_trial_code(),
            None if self.folder is None else str(self.folder),
            select_decisive_variables(os.environ),
            self.environment,
            share.part,
            share.gpus > 0,
        )

    def _collect_answers(self, running: Collection[Running], slots: MeasuringSlots) -> dict[Running, Answer]:
        """Wait for a while until an attempt has ended, and return the answers of those that have."""
        ours, ended = self.cluster.wait(tuple(slots.asked), tuple(running), _WAIT_SECONDS)
        for reservation in ours:
            slots.note_granted(reservation)
        answers = {one: self.cluster.get_answer(one) for one in ended}
        assert all(answer.attempt == one.attempt for one, answer in answers.items())
        return answers


def _judge_answer(one: Running, job: _QueuedJob, answer: Answer, slots: MeasuringSlots) -> JobResult[T] | _QueuedJob:
    node = one.reservation.node
    if answer.ending is Ending.UNFIT:
        slots.unfit[node.id] = f"{node.address}: {answer.text}{f' ({answer.hint})' if answer.hint else ''}"
    slots.put_back(one.reservation, lost=answer.ending is Ending.LOST)
    if answer.ending is Ending.UNFIT:
        return job
    if answer.ending is Ending.LOST:
        lost = (*job.lost, f"{one.attempt} on {node.address}: {answer.text}")
        if len(lost) < MOST_ATTEMPTS:
            return replace(job, lost=lost, avoided=job.avoided | {node.id})
        void = f"void: {len(lost)} attempts were lost, the last, {lost[-1]}"
        return JobResult(job.number, TrialError(void, "nothing of them counts; try again on nodes that stay"), None)
    placed = Placement(one.attempt, node.id, node.address, job.lost)
    if answer.ending is Ending.RETURNED:
        result: T = pickle.loads(answer.value)
        return JobResult(job.number, result, placed)
    text = answer.text if answer.ending is Ending.FAILED else f"internal error on {node.address}: {answer.text}"
    return JobResult(job.number, TrialError(text, answer.hint), placed)


def _are_all_unfit(nodes: Collection[Node], slots: MeasuringSlots) -> bool:
    return bool(nodes) and all(node.id in slots.unfit for node in nodes)


def _make_nowhere_error(nodes: Collection[Node], slots: MeasuringSlots) -> NowhereError:
    unfit = "; ".join(slots.unfit.values())
    if _are_all_unfit(nodes, slots):
        return NowhereError(f"no node may run it: {unfit}")
    others = f"; others may not run it: {unfit}" if unfit else ""
    return NowhereError(
        f"the cluster has no node to measure on{others}", "ray status shows the processors and GPUs it has"
    )


def _format_progress(
    jobs: Sequence[Job[T]], waiting: Sequence[_QueuedJob], running: Mapping[Running, _QueuedJob]
) -> str:
    done = len(jobs) - len(waiting) - len(running)
    at_work = [f"{jobs[job.number].label} on {one.reservation.node.address}" for one, job in running.items()]
    return f"{done} of {len(jobs)} done; {', '.join(at_work) or 'waiting for a node to be free'}"
