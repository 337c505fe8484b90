"""An event as a row of its table."""

from __future__ import annotations

from frx_graph.ledger.decision import Recorded
from frx_graph.ledger.event_document import time_text
from frx_graph.support.plain_text import encodable


def event_row(event: Recorded) -> dict[str, object]:
    """The columns of the event, by name."""
    decision = event.decision
    return {
        "position": event.position,
        "hash": event.hash,
        "previous": event.previous,
        "kind": decision.kind.value,
        "signature": decision.signature,
        "environment": decision.environment,
        "plan": decision.plan,
        "decided_by": encodable(decision.decided_by),
        "recorded_at": time_text(decision.recorded_at),
        "document": event.document,
    }
