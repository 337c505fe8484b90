"""The graphs that a ledger may have a plan for."""

from __future__ import annotations

from frx_graph.errors import LedgerMissingError
from frx_graph.ledger.database.opening import open_to_read
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import choose_location
from frx_graph.ledger.store import EventFilter


def promoted_signatures(configured: str | None) -> tuple[str, ...]:
    """Signatures, in order, of all graphs for which the ledger has ever promoted a plan, in whatever environment and
    whether or not it still stands. Raises `LedgerError` where it cannot be read."""
    try:
        ledger = open_to_read(choose_location(None, configured))
    except LedgerMissingError:
        return ()
    promoted = ledger.events(EventFilter(kinds=(Kind.PROMOTED,)))
    return tuple(sorted({event.decision.signature for event in promoted}))
