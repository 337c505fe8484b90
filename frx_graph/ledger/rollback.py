"""Back to the baseline."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from frx_graph.ledger.author import Author
from frx_graph.ledger.decision import Decision, Kind, Recorded


def rollbacks(promotions: Iterable[Recorded], *, reason: str, by: Author, now: datetime) -> tuple[Decision, ...]:
    """What is to be appended, together, to withdraw these promotions."""
    return tuple(event.decision.followed_by(Kind.ROLLED_BACK, reason=reason, by=by, at=now) for event in promotions)
