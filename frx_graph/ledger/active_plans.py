"""Derive the state of a graph's plans in one environment from the events, and chain new decisions.

Writers do not wait for each other, so a decision must be safe even if it missed another writer's event. Evidence may
always be added. A verdict against a plan outweighs an earlier one for it. A plan that was ever promoted can always be
rolled back, since a process may still run with it. A trial and its verdict belong in one append, so that no other
verdict comes between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Protocol

from frx_graph.errors import LedgerError, LedgerRefusedError
from frx_graph.ledger.decision import AUTOPILOT, Decision, Kind, RecordedEvent
from frx_graph.ledger.event_document import NO_EVENT, record_event

_P, _T, _I, _R = Kind.PROPOSED, Kind.TRIED, Kind.INCONCLUSIVE, Kind.REJECTED
_M, _A, _B, _E = Kind.PROMOTED, Kind.APPLIED, Kind.ROLLED_BACK, Kind.EXPIRED

TRANSITIONS: Mapping[Kind | None, Mapping[Kind, Kind]] = MappingProxyType(
    {
        None: {_P: _P},
        _P: {_P: _P, _T: _T, _B: _B},
        _T: {_P: _T, _T: _T, _I: _I, _R: _R, _M: _M, _B: _B},
        _I: {_P: _P, _T: _T, _B: _B},
        _R: {_P: _P, _T: _R, _I: _R, _R: _R, _B: _B},
        _M: {_P: _M, _T: _M, _I: _M, _R: _R, _M: _M, _A: _A, _B: _B, _E: _E},
        _A: {_P: _A, _T: _A, _I: _A, _R: _R, _M: _A, _A: _A, _B: _B, _E: _E},
        _B: {_P: _P, _T: _B, _I: _B, _R: _B, _B: _B},
        _E: {_P: _P, _T: _T, _B: _B, _E: _E},
    }
)
"""Maps a plan's state and an allowed decision to the next state. None: a plan that was never proposed. `get_next_state`
has two more rules."""

STANDING = frozenset({Kind.PROMOTED, Kind.APPLIED})
"""The states in which a plan may be applied."""


def get_next_state(state: Kind | None, kind: Kind, decided_by: str, *, was_promoted: bool) -> Kind | None:
    """Return the state of a plan in `state` after a decision of this kind; None if it is not allowed.

    The autopilot cannot propose a rolled-back plan again; a person can. Only plans that were once promoted can be
    rolled back.
    """
    if state is Kind.ROLLED_BACK and kind is Kind.PROPOSED and decided_by == AUTOPILOT:
        return None
    if kind is Kind.ROLLED_BACK and not was_promoted:
        return None
    return TRANSITIONS[state].get(kind)


@dataclass(frozen=True, slots=True)
class Step:
    """The fields of an event that decide the plan's state."""

    position: int
    kind: Kind
    plan: str
    decided_by: str
    recorded_at: datetime

    @staticmethod
    def from_event(event: RecordedEvent) -> Step:
        """Return the step of an event."""
        decision = event.decision
        return Step(event.position, decision.kind, decision.plan, decision.decided_by, decision.recorded_at)


@dataclass(frozen=True, slots=True)
class PlanState:
    """State of one plan. `last` is the step that set it, which may be another plan's rollback; `promoted` is the plan's
    last promotion, even if inactive now."""

    plan: str
    state: Kind
    last: Step
    promoted: Step | None

    @property
    def stands(self) -> bool:
        """True if the plan may be applied."""
        return self.state in STANDING


@dataclass(frozen=True, slots=True)
class PlanStates:
    """The states of all plans for one graph in one environment, and the steps that were not allowed."""

    plans: Mapping[str, PlanState]
    illegal: tuple[Step, ...] = ()

    @property
    def promoted(self) -> tuple[PlanState, ...]:
        """The plans that may be applied, last promoted first."""
        return tuple(
            sorted((plan for plan in self.plans.values() if plan.stands), key=_get_promotion_position, reverse=True)
        )

    @property
    def current(self) -> PlanState | None:
        """The plan to apply: the last promoted of the active ones; None for the baseline."""
        return next(iter(self.promoted), None)

    def find_objection(self, decision: Decision) -> str | None:
        """Return why this decision is not allowed now; None if it is."""
        known = self.plans.get(decision.plan)
        if _get_next_state_of(known, decision.kind, decision.decided_by) is not None:
            return None
        where = f"{decision.signature} in environment {decision.environment}"
        found = f"is {known.state.value} since event {known.last.position}" if known else "was never proposed"
        return f"plan {decision.plan} cannot be {decision.kind.value} for {where}: there it {found}"

    def apply_step(self, step: Step) -> PlanStates:
        """Return the states after one more step. An illegal step changes no state, and is kept in `illegal`."""
        known = self.plans.get(step.plan)
        state = _get_next_state_of(known, step.kind, step.decided_by)
        if state is None:
            return PlanStates(self.plans, (*self.illegal, step))
        plans = dict(self.plans)
        if state is Kind.ROLLED_BACK and known is not None and known.stands:
            # Back to the baseline: an earlier promoted plan must be tried again first.
            for name, other in self.plans.items():
                if other.stands:
                    plans[name] = PlanState(name, Kind.EXPIRED, step, other.promoted)
        promoted = step if step.kind is Kind.PROMOTED else known.promoted if known is not None else None
        plans[step.plan] = PlanState(step.plan, state, step, promoted)
        return PlanStates(plans, self.illegal)


NOTHING = PlanStates({})
"""The states before any decision."""


def fold_steps(steps: Iterable[Step]) -> PlanStates:
    """Return the states after the steps of one graph in one environment, given in order."""
    standing = NOTHING
    for step in steps:
        standing = standing.apply_step(step)
    return standing


def find_active_elsewhere(steps: Mapping[str, Iterable[Step]], environment: str) -> Mapping[str, tuple[PlanState, ...]]:
    """Return the active plans of other environments than `environment`, by fingerprint. They must be tried here before
    they are applied. `steps` holds one graph's steps by environment."""
    others = {name: fold_steps(each).promoted for name, each in steps.items() if name != environment}
    return {name: promoted for name, promoted in others.items() if promoted}


def _get_next_state_of(known: PlanState | None, kind: Kind, decided_by: str) -> Kind | None:
    if known is None:
        return get_next_state(None, kind, decided_by, was_promoted=False)
    return get_next_state(known.state, kind, decided_by, was_promoted=known.promoted is not None)


def _get_promotion_position(plan: PlanState) -> int:
    return plan.promoted.position if plan.promoted is not None else 0


class EventSource(Protocol):
    """The events in a ledger, as one transaction sees them."""

    def get_last(self) -> tuple[int, str] | None:
        """Return the position and hash of the last event."""

    def read_steps(self, signature: str, environment: str) -> Iterable[Step]:
        """Return the steps that decide the states for one graph in one environment. They include only the last
        `applied` event of each plan: every process adds one, and none changes the state."""


def chain_decisions(events: EventSource, decisions: Sequence[Decision]) -> tuple[RecordedEvent, ...]:
    """Return the decisions as events. Raises LedgerRefusedError for a decision that is not allowed."""
    # Read the last event first: if others append after that, this append fails and is repeated.
    position, previous = events.get_last() or (0, NO_EVENT)
    standings: dict[tuple[str, str], PlanStates] = {}
    recorded = []
    for decision in decisions:
        key = (decision.signature, decision.environment)
        if key not in standings:
            standings[key] = fold_steps(events.read_steps(*key))
        if (objection := standings[key].find_objection(decision)) is not None:
            raise LedgerRefusedError(objection, "read its current state, and decide again")
        position += 1
        event = record_event(decision, position, previous)
        previous = event.hash
        standings[key] = standings[key].apply_step(Step.from_event(event))
        recorded.append(event)
    return tuple(recorded)


def parse_step(position: int, kind: str, plan: str, decided_by: str, recorded_at: str) -> Step:
    """Return a step from the columns of an event's row. Raises LedgerError for invalid values."""
    try:
        return Step(position, Kind(kind), plan, decided_by, datetime.fromisoformat(recorded_at))
    except ValueError as error:
        raise LedgerError(f"event {position} is malformed: {error}", "frx ledger verify") from error
