"""Read past decisions, which keep the autopilot from trying plans for a graph again unasked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from frx_graph.compiler.plans import is_permitted, make_recorded_plan
from frx_graph.errors import LedgerMissingError
from frx_graph.ledger.active_plans import PlanState, Step
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.fast_path import read_decided
from frx_graph.promotion.promoted_plan import Subject

_TRIED_AGAIN_AFTER = timedelta(days=1)
"""Age from which an inconclusive trial, as on a busy machine, is repeated; each takes the whole time budget."""


def is_settled(subject: Subject) -> bool:
    """Return whether nothing is left to try unasked: a plan was rolled back, or a search under this policy has ended,
    not been interrupted, and no plan is new since. Raises `LedgerError`."""
    plans = tuple(_find_relevant(subject))
    if _has_rollback(plans):
        return True
    now = datetime.now(UTC)
    nothing = make_recorded_plan(()).hash
    ends = (plan for plan in plans if plan.plan == nothing and plan.state in (Kind.REJECTED, Kind.INCONCLUSIVE))
    ended = next(ends, None)
    return ended is not None and not any(_is_open(plan, ended.last, now) for plan in plans)


def is_blocked(subject: Subject) -> bool:
    """Return whether a plan was rolled back, and no user has asked for it since. Raises `LedgerError`."""
    return _has_rollback(_find_relevant(subject))


def find_rejected(subject: Subject) -> frozenset[str]:
    """Return the plans that were rejected under this policy, and are not tried again. Raises `LedgerError`."""
    return frozenset(plan.plan for plan in _find_relevant(subject) if plan.state is Kind.REJECTED)


def _has_rollback(plans: Iterable[PlanState]) -> bool:
    return any(plan.state is Kind.ROLLED_BACK for plan in plans)


def _is_open(plan: PlanState, ended: Step, now: datetime) -> bool:
    """Return whether a new search would try the plan, unlike the last one, which has `ended`."""
    # That one tried the plans known before, or had no reason to, as for a combination of plans no longer promoted.
    if plan.state is Kind.REJECTED:
        return False
    if plan.last.kind is Kind.INCONCLUSIVE:
        due = plan.last.recorded_at + _TRIED_AGAIN_AFTER
        return due <= now and (ended.recorded_at < due or ended.position < plan.last.position)
    # A plan that other processes apply is not new, even if it is too old for this process.
    came_up = plan.promoted if plan.stands and plan.promoted is not None else plan.last
    return came_up.position > ended.position


def _find_relevant(subject: Subject) -> Iterator[PlanState]:
    """Yield the states of the plans whose decisions count here."""
    # One policy may promote what another forbids or finds too slow. A rejection ages as a promotion does. A plan that
    # was only tried together with other graphs has no verdict.
    oldest = datetime.now(UTC) - timedelta(days=subject.policy.decision_max_age_days)
    try:
        found = read_decided(subject.place, subject.signature, subject.environment)
    except LedgerMissingError:
        return
    for plan, event in found:
        if plan.state is not Kind.ROLLED_BACK and not is_permitted(subject.policy.risk, event.decision.candidates):
            continue
        of_this_policy = event.decision.policy == subject.policy.hash
        recent = plan.last.recorded_at >= oldest
        judged = {Kind.REJECTED: of_this_policy and recent, Kind.INCONCLUSIVE: of_this_policy, Kind.TRIED: False}
        if judged.get(plan.state, True):
            yield plan
