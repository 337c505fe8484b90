"""Look up and append decisions without SQLAlchemy if possible, as every program compiled with frx does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from frx_graph.errors import LedgerMissingError
from frx_graph.ledger.active_plans import PlanState, find_active_elsewhere
from frx_graph.ledger.decision import Decision, Kind, RecordedEvent
from frx_graph.ledger.location import Location, check_exists, choose_location
from frx_graph.ledger.plain_file import NotPlainError, PlainFile, open_plain_file

if TYPE_CHECKING:
    from frx_graph.ledger.store import Ledger

_Found = TypeVar("_Found")


def read_promotions(place: Location, signature: str, environment: str) -> tuple[RecordedEvent, ...]:
    """Return the active promotions for one graph in one environment, latest first. Raises LedgerMissingError if there
    is no ledger, and LedgerError if it cannot be read."""
    return _read(place, lambda ledger: ledger.read_promotions(signature, environment))


def read_decided(place: Location, signature: str, environment: str) -> tuple[tuple[PlanState, RecordedEvent], ...]:
    """Return the state of each plan for a graph, with the event that set it. Raises as `read_promotions`."""
    return _read(place, lambda ledger: ledger.read_decided(signature, environment))


def find_promotion_elsewhere(place: Location, signature: str, environment: str) -> RecordedEvent | None:
    """Return an active promotion of another environment; None if there is none, or this environment has a decision.
    Raises as `read_promotions`."""

    def find(ledger: PlainFile | Ledger) -> RecordedEvent | None:
        steps = ledger.read_steps_by_environment(signature)
        others = {} if environment in steps else find_active_elsewhere(steps, environment)
        return next((event for name in others for event in ledger.read_promotions(signature, name)), None)

    return _read(place, find)


def read_evidence(place: Location, event: RecordedEvent) -> RecordedEvent | None:
    """Return the last trial of the event's plan before the event. Raises LedgerError."""
    return _read(place, lambda ledger: ledger.read_evidence(event))


def _read(place: Location, asked: Callable[[PlainFile | Ledger], _Found]) -> _Found:
    check_exists(place)
    if place.file is not None:
        with contextlib.suppress(NotPlainError), open_plain_file(place.file) as ledger:
            return asked(ledger)
    from frx_graph.ledger.database.opening import open_to_read

    return asked(open_to_read(place))


def append_decisions(
    place: Location, decisions: Sequence[Decision], *, patience_seconds: float | None = None
) -> tuple[RecordedEvent, ...]:
    """Append all of `decisions` in order, or none; when this returns they are on disk. Creates a missing ledger.
    Waits for other writers for `patience_seconds`, by default as long as `open_ledger` does. Raises LedgerError."""
    if place.file is not None:
        with contextlib.suppress(NotPlainError), open_plain_file(place.file) as ledger:
            return ledger.append(decisions)
    from frx_graph.ledger.database.opening import open_ledger

    if patience_seconds is None:
        return open_ledger(place).append(decisions)
    return open_ledger(place, patience_seconds=patience_seconds).append(decisions)


def read_promoted_signatures(configured: str | None) -> tuple[str, ...]:
    """Return the sorted signatures of all graphs for which the ledger ever promoted a plan, in any environment, even if
    inactive now. Raises LedgerError for a ledger that cannot be read."""
    from frx_graph.ledger.database.opening import open_to_read
    from frx_graph.ledger.store import EventFilter

    try:
        ledger = open_to_read(choose_location(None, configured))
    except LedgerMissingError:
        return ()
    promoted = ledger.read_events(EventFilter(kinds=(Kind.PROMOTED,)))
    return tuple(sorted({event.decision.signature for event in promoted}))
