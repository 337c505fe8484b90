"""Read the ledger for the service; nothing is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from frx_graph.errors import LedgerError, LedgerMissingError
from frx_graph.ledger.active_plans import PlanStates, fold_steps
from frx_graph.ledger.database.opening import open_to_read
from frx_graph.ledger.decision import Kind, RecordedEvent
from frx_graph.ledger.location import Location
from frx_graph.ledger.schema import build_ledger_document
from frx_graph.ledger.store import EventFilter, Ledger
from frx_graph.ledger.trial_summary import TrialSummary, read_summaries, summarize_evidence
from frx_graph.service.http.problem import ProblemError

Answered = TypeVar("Answered")
_MOST_READERS = 4
"""Reads of the ledger at one time."""
MOST_EVENTS = 500
"""Events in one answer."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """The last matching events, oldest first, and the number of all matching events."""

    events: tuple[RecordedEvent, ...]
    summaries: Mapping[int, TrialSummary]
    """The trials that they rest on, by position."""
    total: int
    older: int | None
    """The position of an event before which there are more; None if there are no more."""


@dataclass(frozen=True, slots=True)
class DecisionBook:
    """A ledger, opened for each query, since it may not exist yet. Coroutines query it through `read`."""

    location: Location
    _readers: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_MOST_READERS))

    async def read(self, question: Callable[[], Answered]) -> Answered:
        """Run `question` in a thread. Few run at once, so that a slow database leaves threads for uploads."""
        return await run_sync(question, limiter=self._readers)

    def read_last(
        self, *, signature: str | None = None, kind: Kind | None = None, before: int | None = None, limit: int
    ) -> Decisions:
        """Return the last `limit` events before event `before`. Raises `ProblemError` if the ledger cannot be read."""
        source = self._open_ledger()
        if source is None:
            return Decisions((), {}, 0, None)
        wanted = EventFilter(signature, None, () if kind is None else (kind,), before)
        with _raise_ledger_problems():
            found = source.read_events(wanted, newest=limit + 1)
            total = source.count_events(EventFilter(signature, None, wanted.kinds))
            shown = found[-limit:]
            summaries = read_summaries(source, shown)
        return Decisions(shown, summaries, total, shown[0].position if len(found) > limit else None)

    def read_event(self, position: int) -> tuple[RecordedEvent, RecordedEvent | None]:
        """Return one event, and the trial that it rests on. Raises `ProblemError` if there is no such event."""
        source = self._open_ledger()
        with _raise_ledger_problems():
            found = None if source is None else source.read_at(position)
            if source is None or found is None:
                raise ProblemError(404, f"there is no event {position}", "GET /ledger/events lists them")
            return found, source.read_evidence(found)

    def read_one(self, position: int) -> Decisions:
        """Return one event as the only one. Raises `ProblemError` if there is no such event."""
        found, evidence = self.read_event(position)
        summary = summarize_evidence(evidence)
        return Decisions((found,), {} if summary is None else {position: summary}, 1, None)

    def build_document(self, decisions: Decisions, signature: str | None = None) -> dict[str, Any]:
        """Return the document `frx_ledger_v1`; with a `signature`, its active plans, too."""
        standings = None if signature is None else self._read_standings(signature)
        return build_ledger_document(
            str(self.location), decisions.total, decisions.events, decisions.summaries, standings
        )

    def _read_standings(self, signature: str) -> Mapping[str, PlanStates]:
        source = self._open_ledger()
        if source is None:
            return {}
        with _raise_ledger_problems():
            return {name: fold_steps(steps) for name, steps in source.read_steps_by_environment(signature).items()}

    def _open_ledger(self) -> Ledger | None:
        with _raise_ledger_problems(), contextlib.suppress(LedgerMissingError):
            return open_to_read(self.location)
        return None


@contextlib.contextmanager
def _raise_ledger_problems() -> Iterator[None]:
    try:
        yield
    except LedgerError as error:
        raise ProblemError(503, error.message, error.hint, {"Retry-After": "10"}) from None
