"""Decisions become events behind the last one, where they may follow what is there; however that is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

from frx_graph.errors import LedgerError, LedgerRefusedError
from frx_graph.ledger.active_plans import Standing, Step, fold
from frx_graph.ledger.decision import Decision, Kind, Recorded
from frx_graph.ledger.event_document import NO_EVENT, record


class Events(Protocol):
    """What is there already, as one transaction sees it."""

    def last(self) -> tuple[int, str] | None:
        """Position and hash of the last event."""

    def steps(self, signature: str, environment: str) -> Iterable[Step]:
        """The steps that decide what stands for one graph in one environment. Of each plan's applications only the last
        is one: there is one more for every process that ran, and they leave a plan in the state that it is in."""


def chained(events: Events, decisions: Sequence[Decision]) -> tuple[Recorded, ...]:
    """The decisions as events. Raises LedgerRefusedError for one that must not follow what is there."""
    # The last event comes first: what others append after it was read makes ours fail, and be made again.
    position, previous = events.last() or (0, NO_EVENT)
    standings: dict[tuple[str, str], Standing] = {}
    recorded = []
    for decision in decisions:
        key = (decision.signature, decision.environment)
        if key not in standings:
            standings[key] = fold(events.steps(*key))
        if (objection := standings[key].objection(decision)) is not None:
            raise LedgerRefusedError(objection, "read what stands there, and decide again")
        position += 1
        event = record(decision, position, previous)
        previous = event.hash
        standings[key] = standings[key].after(Step.of(event))
        recorded.append(event)
    return tuple(recorded)


def step_of(position: int, kind: str, plan: str, decided_by: str, recorded_at: str) -> Step:
    """A step from the columns of its event's row. Raises LedgerError for what no event has."""
    try:
        return Step(position, Kind(kind), plan, decided_by, datetime.fromisoformat(recorded_at))
    except ValueError as error:
        raise LedgerError(f"event {position} is not what it should be: {error}", "frx ledger verify") from error
