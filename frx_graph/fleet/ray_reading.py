"""Read runs on the nodes of a Ray cluster.

A task reads several places, as a thread does locally. Reading changes nothing, and answers arrive with the whole task,
so Ray can repeat the tasks of a lost node. Ray Data would need PyArrow and pandas for a queue.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final

from frx_graph.errors import EvidenceError, summarize_error
from frx_graph.fleet.messages import Answer, Failure, ReadingTask
from frx_graph.fleet.reader import Reader
from frx_graph.fleet.remote import is_url
from frx_graph.fleet.source import open_source
from frx_graph.version import __version__

PLACES_OF_A_TASK: Final = 32
_TASKS_OF_A_PROCESSOR: Final = 2
"""Tasks that exist at once: a processor need not wait for its next task, and at most this many answers are kept."""
_RETRIES: Final = 3
"""Retries of a task whose node or process was lost."""
_WAIT_SECONDS: Final = 1.0
"""Seconds between checks of the number of processors."""


def read_on_cluster(ray: Any, source: str) -> Generator[Answer]:
    """Yield the answers for all places of `source` as they arrive; `ray` is the connected module. Tasks are cancelled
    when the caller stops. Raises `EvidenceError` if a node cannot read the source at all."""
    where = source if is_url(source) else str(Path(source).absolute())
    reading = ray.remote(num_cpus=1, max_retries=_RETRIES)(read_places_on_node)
    places = iter(open_source(where).list_places())
    tasks = iter(lambda: tuple(itertools.islice(places, PLACES_OF_A_TASK)), ())
    running: dict[Any, Sequence[Any]] = {}
    try:
        while True:
            at_once = _TASKS_OF_A_PROCESSOR * max(1, int(ray.cluster_resources().get("CPU", 1)))
            for task in itertools.islice(tasks, max(0, at_once - len(running))):
                running[reading.remote(where, task, __version__)] = task
            if not running:
                return
            done, _ = ray.wait(list(running), timeout=_WAIT_SECONDS)
            for one in done:
                yield from _get_answers(ray, one, running.pop(one))
    finally:
        for one in running:
            ray.cancel(one, force=True)


def _get_answers(ray: Any, task: Any, places: Sequence[Any]) -> Sequence[Answer]:
    try:
        found: Sequence[Answer] = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause or error
        if isinstance(cause, EvidenceError):
            raise EvidenceError(cause.message, cause.hint) from None
        raise EvidenceError(
            f"a node cannot read runs: {summarize_error(cause)}", "is frx-graph installed there?"
        ) from None
    except ray.exceptions.RayError as error:
        why = f"the nodes that were to read it were lost: {summarize_error(error)}"
        return [Failure(place.name, why) for place in places]
    return found


def read_places_on_node(source: str, places: Sequence[Any], version: str) -> list[Answer]:
    """Read places in a task, on its node.

    Raises `EvidenceError` if this node has different code, or lacks these files.
    """
    here = socket.gethostname()
    if version != __version__:
        raise EvidenceError(f"node {here} has frx-graph {__version__}, not {version}", "install the same on all nodes")
    for place in places:
        if isinstance(place, ReadingTask) and not Path(place.path).exists():
            hint = "runs must be where all nodes can reach them: on a shared file system, or at a URL"
            raise EvidenceError(f"node {here} has no {place.path}", hint)
    opened: Any = open_source(source)
    reader = Reader()
    try:
        return [answer for place in places for answer in opened.read_place(place, reader)]
    finally:
        reader.close()
