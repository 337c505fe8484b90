"""What every program with promoted rewrites does: look up what stands, and what was measured of it, and record what
comes of it. By the short way where there is one, else by the ledger's own."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from frx_graph.ledger.decision import Decision, Recorded
from frx_graph.ledger.location import Location, check_there
from frx_graph.ledger.plain_file import NotPlainError, plain_file


def promotions(place: Location, signature: str, environment: str) -> tuple[Recorded, ...]:
    """The promotions that stand for one graph in one environment, the last first. Raises LedgerMissingError where there
    is no ledger, and LedgerError for one that cannot be read."""
    check_there(place)
    if place.file is not None:
        with contextlib.suppress(NotPlainError), plain_file(place.file) as ledger:
            return ledger.promotions(signature, environment)
    from frx_graph.ledger.opening import open_to_read

    return open_to_read(place).promotions(signature, environment)


def evidence(place: Location, event: Recorded) -> Recorded | None:
    """The last trial of the event's plan before it. Raises LedgerError."""
    if place.file is not None:
        with contextlib.suppress(NotPlainError), plain_file(place.file) as ledger:
            return ledger.evidence(event)
    from frx_graph.ledger.opening import open_to_read

    return open_to_read(place).evidence(event)


def append(
    place: Location, decisions: Sequence[Decision], *, patience_seconds: float | None = None
) -> tuple[Recorded, ...]:
    """Add all of `decisions`, in their order, or none; when this returns they are on disk. Makes a ledger where there
    is none. Other writers are waited for as long as the ledger's own way does, or `patience_seconds`. Raises
    LedgerError."""
    if place.file is not None:
        with contextlib.suppress(NotPlainError), plain_file(place.file) as ledger:
            return ledger.append(decisions)
    from frx_graph.ledger.opening import open_ledger

    if patience_seconds is None:
        return open_ledger(place).append(decisions)
    return open_ledger(place, patience_seconds=patience_seconds).append(decisions)
