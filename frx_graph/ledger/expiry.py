"""Promotions that are too old to be relied on."""

from __future__ import annotations

from datetime import datetime, timedelta

from frx_graph.ledger.author import Author
from frx_graph.ledger.decision import Decision, Kind


def expiry(promotion: Decision, max_age: timedelta, *, now: datetime, by: Author) -> Decision | None:
    """What is to be appended where `promotion` is older than `max_age`, before its plan is applied again; None where it
    is not. One from the future, by another machine's clock, is not old."""
    age = now - promotion.recorded_at
    if age <= max_age:
        return None
    reason = f"promoted {_days(age)} ago, which is more than {_days(max_age)}"
    return promotion.followed_by(Kind.EXPIRED, reason=reason, by=by, at=now, policy=promotion.policy)


def _days(span: timedelta) -> str:
    return f"{span / timedelta(days=1):.1f} days"
