"""A ledger as JSON Lines: `frx_ledger_v1`'s events, from which every hash can be worked out again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from frx_graph.errors import LedgerError
from frx_graph.ledger.canonical_json import canonical
from frx_graph.ledger.event_document import exported, read_event


def exported_lines(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """A line for each stored row, oldest first. Raises LedgerError, with its number, for one that is no event."""
    for row in rows:
        try:
            event = read_event(str(row["document"]), str(row["hash"]))
        except LedgerError as error:
            raise LedgerError(f"event {row['position']}: {error.message}", "frx ledger verify") from error
        yield canonical(exported(event))
