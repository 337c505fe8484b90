"""Count the worker processes of the loaders that a program waits for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from frx_graph.evidence.run.events import LoaderWait, RunEvent


def count_loader_workers(events: Iterable[RunEvent]) -> int | None:
    """Return the workers of all processes together, or None if unknown. Of several loaders in one process, the one with
    the longest waits counts."""
    waits: dict[int | None, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for event in events:
        if isinstance(event, LoaderWait) and event.workers is not None:
            waits[event.process][event.workers] += event.duration_ns
    return sum(max(here, key=lambda workers: here[workers]) for here in waits.values()) if waits else None
