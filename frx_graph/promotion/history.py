"""What was decided against for a graph, so that the autopilot does not try it again unasked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from frx_graph.compiler.plans import recorded_plan
from frx_graph.compiler.risk import permits
from frx_graph.errors import LedgerMissingError
from frx_graph.ledger.active_plans import PlanState, Step
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.fast_path import decided
from frx_graph.promotion.promoted_plan import Subject

_TRIED_AGAIN_AFTER = timedelta(days=1)
"""What was inconclusive, as on a machine that had other work: each trial takes the policy's whole time budget."""


def decided_against(subject: Subject) -> bool:
    """True where nothing is to be tried unasked: something was rolled back, or a search under this policy has ended and
    nothing has come up since. What one that was interrupted has rejected says nothing about the rest. Raises
    `LedgerError`."""
    plans = tuple(_judged(subject))
    if _rolled_back(plans):
        return True
    now = datetime.now(UTC)
    ended = next((plan.last for plan in plans if _is_ended_search(plan)), None)
    return ended is not None and not any(_is_open(plan, ended, now) for plan in plans)


def left_alone(subject: Subject) -> bool:
    """True where something was rolled back, and nobody has asked for it since. Raises `LedgerError`."""
    return _rolled_back(_judged(subject))


def rejected(subject: Subject) -> frozenset[str]:
    """The plans that were rejected under this policy, and are not tried again. Raises `LedgerError`."""
    return frozenset(plan.plan for plan in _judged(subject) if plan.state is Kind.REJECTED)


def _rolled_back(plans: Iterable[PlanState]) -> bool:
    return any(plan.state is Kind.ROLLED_BACK for plan in plans)


def _is_ended_search(plan: PlanState) -> bool:
    return plan.plan == recorded_plan(()).hash and plan.state in (Kind.REJECTED, Kind.INCONCLUSIVE)


def _is_open(plan: PlanState, ended: Step, now: datetime) -> bool:
    """Whether a search would try it that the last one, which has `ended`, did not. That one has tried what had come up
    before, or had no more cause to, as for a combination of what is not promoted any more."""
    if plan.state is Kind.REJECTED:
        return False
    if plan.last.kind is Kind.INCONCLUSIVE:
        due = plan.last.recorded_at + _TRIED_AGAIN_AFTER
        return due <= now and (ended.recorded_at < due or ended.position < plan.last.position)
    # That other processes apply what is too old for this one is nothing new.
    came_up = plan.promoted if plan.stands and plan.promoted is not None else plan.last
    return came_up.position > ended.position


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
