"""Back to the baseline."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from frx_graph.ledger.author import Author
from frx_graph.ledger.decision import Decision, Kind, Recorded


def rollbacks(
    promotions: Iterable[Recorded], *, reason: str, by: Author, now: datetime, policy: str | None = None
) -> tuple[Decision, ...]:
    """What is to be appended, together, to withdraw these promotions; `policy` None where a person chose to."""
    return tuple(
        event.decision.followed_by(Kind.ROLLED_BACK, reason=reason, by=by, at=now, policy=policy)
        for event in promotions
    )
