"""What was decided against for a graph, so that the autopilot does not try it again unasked."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from frx_graph.current_plan import recorded_plan
from frx_graph.errors import LedgerMissingError
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.quickly import decided
from frx_graph.ledger.standing import PlanState
from frx_graph.promotion import Subject
from frx_graph.rewrite_risk import permits

_TRIED_AGAIN_AFTER = timedelta(days=1)
"""What was inconclusive, as on a machine that had other work: each trial takes the policy's whole time budget."""


def decided_against(subject: Subject) -> bool:
    """True where nothing is to be tried unasked: something was rolled back, or a search under this policy has ended and
    all that was tried was rejected, or has been inconclusive not long ago. What one that was interrupted has rejected
    says nothing about the rest. Raises `LedgerError`."""
    plans = tuple(_judged(subject))
    lately = datetime.now(UTC) - _TRIED_AGAIN_AFTER
    the_search = recorded_plan(()).hash
    return any(plan.state is Kind.ROLLED_BACK for plan in plans) or (
        any(plan.plan == the_search for plan in plans)
        and all(
            plan.state is Kind.REJECTED or (plan.last.kind is Kind.INCONCLUSIVE and plan.last.recorded_at > lately)
            for plan in plans
        )
    )


def rejected(subject: Subject) -> frozenset[str]:
    """The plans that were rejected under this policy, and are not tried again. Raises `LedgerError`."""
    return frozenset(plan.plan for plan in _judged(subject) if plan.state is Kind.REJECTED)


def _judged(subject: Subject) -> Iterator[PlanState]:
    """Where plans have come to, but for those that nothing is known of here: what one policy asks too much of, or does
    not allow, another may promote; a rejection ages as a promotion does; what was tried with others alone has no
    verdict."""
    oldest = datetime.now(UTC) - timedelta(days=subject.policy.decision_max_age_days)
    try:
        found = decided(subject.place, subject.signature, subject.environment)
    except LedgerMissingError:
        return
    for plan, event in found:
        if plan.state is not Kind.ROLLED_BACK and not permits(subject.policy.risk, event.decision.candidates):
            continue
        of_this_policy = event.decision.policy == subject.policy.hash
        match plan.state:
            case Kind.REJECTED if not of_this_policy or plan.last.recorded_at < oldest:
                continue
            case Kind.INCONCLUSIVE if not of_this_policy:
                continue
            case Kind.TRIED:
                continue
        yield plan
