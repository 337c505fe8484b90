"""Verify a ledger: every hash, the chain, each event's form, and that each decision was allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from frx_graph.errors import LedgerError
from frx_graph.ledger.active_plans import NOTHING, PlanStates, Step
from frx_graph.ledger.canonical_json import hash_content
from frx_graph.ledger.decision import RecordedEvent
from frx_graph.ledger.event_document import NO_EVENT, make_event_row, read_event
from frx_graph.ledger.store import Ledger


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem and the event's position, from 1. The position is None if the file itself is damaged."""

    position: int | None
    what: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The number of sound events, and the first problem; later events depend on it."""

    sound: int
    problem: Problem | None


def verify(ledger: Ledger) -> Verification:
    """Check a whole ledger. Raises LedgerError if it cannot be read at all."""
    complaint = ledger.check_integrity()
    if complaint is not None:
        return Verification(0, Problem(None, f"the database's own check failed: {complaint}"))
    return verify_rows(ledger.read_rows())


def verify_rows(rows: Iterable[Mapping[str, object]]) -> Verification:
    """Check the rows of a ledger, in order."""
    sound, previous = 0, NO_EVENT
    standings: dict[tuple[str, str], PlanStates] = {}
    for row in rows:
        position = sound + 1
        try:
            event = _read(row, position, previous)
        except LedgerError as error:
            return Verification(sound, Problem(position, error.message))
        key = (event.decision.signature, event.decision.environment)
        standing = standings.get(key, NOTHING)
        if (objection := standing.find_objection(event.decision)) is not None:
            return Verification(sound, Problem(position, objection))
        standings[key] = standing.apply_step(Step.from_event(event))
        sound, previous = position, event.hash
    return Verification(sound, None)


def _read(row: Mapping[str, object], position: int, previous: str) -> RecordedEvent:
    """Return the event of the row at `position`, which the hash `previous` precedes."""
    document, stored_hash = row["document"], row["hash"]
    if row["position"] != position:
        raise LedgerError(f"it is missing: the next one is event {row['position']}")
    if not isinstance(document, str) or not isinstance(stored_hash, str) or hash_content(document) != stored_hash:
        raise LedgerError("it was changed: its hash does not match its content")
    if row["previous"] != previous:
        raise LedgerError("it does not follow the previous event: that was changed, or an event was removed")
    event = read_event(document, stored_hash)
    for name, value in make_event_row(event).items():
        if row[name] != value:
            raise LedgerError(f"it is stored with another {name.replace('_', ' ')} than it has")
    return event
