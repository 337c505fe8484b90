"""What every program that is compiled with frx does: look up what stands or was decided against, and what was measured
of it, and record what comes of it. By the short way where there is one, else by the ledger's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from frx_graph.errors import LedgerMissingError
from frx_graph.ledger.active_plans import PlanState, elsewhere
from frx_graph.ledger.decision import Decision, Kind, Recorded
from frx_graph.ledger.location import Location, check_there, choose_location
from frx_graph.ledger.plain_file import NotPlainError, PlainFile, plain_file

if TYPE_CHECKING:
    from frx_graph.ledger.store import Ledger

_Found = TypeVar("_Found")


def promotions(place: Location, signature: str, environment: str) -> tuple[Recorded, ...]:
    """The promotions that stand for one graph in one environment, the last first. Raises LedgerMissingError where there
    is no ledger, and LedgerError for one that cannot be read."""
    check_there(place)
    return _read(place, lambda ledger: ledger.promotions(signature, environment))


def decided(place: Location, signature: str, environment: str) -> tuple[tuple[PlanState, Recorded], ...]:
    """Where each plan for one graph in one environment has come to, and by which event. Raises as `promotions`."""
    check_there(place)
    return _read(place, lambda ledger: ledger.decided(signature, environment))


def stands_only_elsewhere(place: Location, signature: str, environment: str) -> bool:
    """Whether a plan stands for one graph in another environment, and nothing was decided in this one. Raises as
    `promotions`."""
    check_there(place)
    steps = _read(place, lambda ledger: ledger.steps_by_environment(signature))
    return environment not in steps and bool(elsewhere(steps, environment))


def evidence(place: Location, event: Recorded) -> Recorded | None:
    """The last trial of the event's plan before it. Raises LedgerError."""
    return _read(place, lambda ledger: ledger.evidence(event))


def _read(place: Location, asked: Callable[[PlainFile | Ledger], _Found]) -> _Found:
    if place.file is not None:
        with contextlib.suppress(NotPlainError), plain_file(place.file) as ledger:
            return asked(ledger)
    from frx_graph.ledger.database.opening import open_to_read

    return asked(open_to_read(place))


def append(
    place: Location, decisions: Sequence[Decision], *, patience_seconds: float | None = None
) -> tuple[Recorded, ...]:
    """Add all of `decisions`, in their order, or none; when this returns they are on disk. Makes a ledger where there
    is none. Other writers are waited for as long as the ledger's own way does, or `patience_seconds`. Raises
    LedgerError."""
    if place.file is not None:
        with contextlib.suppress(NotPlainError), plain_file(place.file) as ledger:
            return ledger.append(decisions)
    from frx_graph.ledger.database.opening import open_ledger

    if patience_seconds is None:
        return open_ledger(place).append(decisions)
    return open_ledger(place, patience_seconds=patience_seconds).append(decisions)


def promoted_signatures(configured: str | None) -> tuple[str, ...]:
    """Return the signatures, sorted, of all graphs for which the ledger has ever promoted a plan, in any environment,
    even if it is no longer active. Raises LedgerError for a ledger that cannot be read."""
    from frx_graph.ledger.database.opening import open_to_read
    from frx_graph.ledger.store import EventFilter

    try:
        ledger = open_to_read(choose_location(None, configured))
    except LedgerMissingError:
        return ()
    promoted = ledger.events(EventFilter(kinds=(Kind.PROMOTED,)))
    return tuple(sorted({event.decision.signature for event in promoted}))
