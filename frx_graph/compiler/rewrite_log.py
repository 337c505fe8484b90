"""Log the rewrites of the graphs that this process has compiled or found in Inductor's cache.

A graph from a cache is not rewritten again, so its report must be cached with it. Inductor stores with each compiled
graph the increase of counters during compilation, and repeats that increase on a hit. So a report is stored as the
name of a counter.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

from pydantic import TypeAdapter, ValidationError

from frx_graph.capture.captured_graph import Phase
from frx_graph.compiler.rewrite_pipeline import RewrittenGraph
from frx_graph.records import Candidate, Refusal
from frx_graph.support.torch_internals import counters

_PREFIX = "frx_rewritten "
_REPORTS = TypeAdapter(RewrittenGraph)


class RewriteLog:
    """Reports in the order in which graphs were compiled, or came from a cache."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._done: list[RewrittenGraph] = []
        self._counted: Counter[str] = Counter()
        self.clear()

    def add(self, done: RewrittenGraph) -> None:
        """Log the rewrites of a graph that no cache keeps."""
        with self._lock:
            self._done.append(done)

    def add_outcome(self, outcome: Candidate | Refusal) -> None:
        """Log a rewrite of a Dynamo graph or a whole model, or its refusal."""
        if isinstance(outcome, Candidate):
            self.add(RewrittenGraph(outcome.graph_id, Phase.FORWARD, (outcome,), ()))
        else:
            self.add(RewrittenGraph("", Phase.FORWARD, (), (outcome,)))

    def add_cached(self, done: RewrittenGraph) -> None:
        """Log the rewrites of a graph that Inductor is compiling; call it during the compilation."""
        with self._lock:
            self.collect()
            name = _PREFIX + _REPORTS.dump_json(done).decode()
            counters["inductor"][name] += 1
            self._counted[name] += 1
            self._done.append(done)

    def collect(self, graph_id: str | None = None) -> None:
        """Log the graphs from a cache since the last call, under `graph_id` if the caller knows it."""
        with self._lock:
            now = Counter({name: n for name, n in counters["inductor"].items() if name.startswith(_PREFIX)})
            for name in self._counted:
                # The counters may have been reset.
                self._counted[name] = min(self._counted[name], now[name])
            for name, times in now.items():
                self._done.extend(_read(name, graph_id) * (times - self._counted[name]))
            self._counted = now

    def read_all(self) -> tuple[RewrittenGraph, ...]:
        """Return the log, in order."""
        with self._lock:
            self.collect()
            return tuple(self._done)

    def clear(self) -> None:
        """Forget what was logged so far."""
        with self._lock:
            self.collect()
            self._done.clear()


def _read(name: str, graph_id: str | None) -> list[RewrittenGraph]:
    try:
        done = _REPORTS.validate_json(name.removeprefix(_PREFIX))
    except ValidationError:
        return []
    if graph_id is None:
        return [done]
    applied = tuple(replace(candidate, graph_id=graph_id) for candidate in done.applied)
    return [replace(done, graph_id=graph_id, applied=applied)]


LOG = RewriteLog()
"""The log of this process."""
