"""Derive the state of a graph's plans in one environment from the events, and chain new decisions.

Writers do not wait for each other, so a decision must be safe even if it missed another writer's event. Evidence may
always be added. A verdict against a plan outweighs an earlier one for it. A plan that was ever promoted can always be
rolled back, since a process may still run with it. A trial and its verdict belong in one append, so that no other
verdict comes between them.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Protocol

from frx_graph.errors import LedgerError, LedgerRefusedError
from frx_graph.ledger.decision import AUTOPILOT, Decision, Kind, RecordedEvent
from frx_graph.ledger.event_document import NO_EVENT, read_event, record_event

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


def get_next_state(known: PlanState | None, kind: Kind, decided_by: str) -> Kind | None:
    """Return the state of a plan after a decision; None if it is not allowed. The autopilot cannot propose a plan again
    that was rolled back, and only plans that were once promoted can be rolled back."""
    state = None if known is None else known.state
    if state is Kind.ROLLED_BACK and kind is Kind.PROPOSED and decided_by == AUTOPILOT:
        return None
    if kind is Kind.ROLLED_BACK and (known is None or known.promoted is None):
        return None
    return TRANSITIONS[state].get(kind)


@dataclass(frozen=True, slots=True)
class PlanStates:
    """The states of all plans for one graph in one environment, and the steps that were not allowed."""

    plans: Mapping[str, PlanState]
    illegal: tuple[Step, ...] = ()

    @property
    def promoted(self) -> tuple[PlanState, ...]:
        """The plans that may be applied, last promoted first."""
        standing = [plan for plan in self.plans.values() if plan.stands]
        return tuple(sorted(standing, key=lambda plan: -plan.promoted.position if plan.promoted else 0))

    @property
    def current(self) -> PlanState | None:
        """The plan to apply: the last promoted of the active ones; None for the baseline."""
        return next(iter(self.promoted), None)

    def find_objection(self, decision: Decision) -> str | None:
        """Return why this decision is not allowed now; None if it is."""
        known = self.plans.get(decision.plan)
        if get_next_state(known, decision.kind, decision.decided_by) is not None:
            return None
        where = f"{decision.signature} in environment {decision.environment}"
        found = f"is {known.state.value} since event {known.last.position}" if known else "was never proposed"
        return f"plan {decision.plan} cannot be {decision.kind.value} for {where}: there it {found}"

    def apply_step(self, step: Step) -> PlanStates:
        """Return the states after one more step. An illegal step changes no state, and is kept in `illegal`."""
        known = self.plans.get(step.plan)
        state = get_next_state(known, step.kind, step.decided_by)
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
    return functools.reduce(PlanStates.apply_step, steps, NOTHING)


def find_active_elsewhere(steps: Mapping[str, Iterable[Step]], environment: str) -> Mapping[str, tuple[PlanState, ...]]:
    """Return the active plans of other environments than `environment`, by fingerprint. They must be tried here before
    they are applied. `steps` holds one graph's steps by environment."""
    others = {name: fold_steps(each).promoted for name, each in steps.items() if name != environment}
    return {name: promoted for name, promoted in others.items() if promoted}


class EventView(Protocol):
    """The events in a ledger, as one transaction sees them."""

    def get_last(self) -> tuple[int, str] | None:
        """Return the position and hash of the last event."""

    def get_row(self, position: int) -> tuple[str, str] | None:
        """Return the document and hash of an event."""

    def list_environments(self, signature: str) -> Sequence[str]:
        """Return the environments with decisions about a graph, sorted."""

    def read_steps(self, signature: str, environment: str) -> Iterable[Step]:
        """Return the steps that decide the states for one graph in one environment. They include only the last
        `applied` event of each plan: every process adds one, and none changes the state."""


class EventReader(ABC):
    """Reads the states of plans; each method sees one state of the ledger. Raises LedgerError for malformed events."""

    @abstractmethod
    def open_view(self) -> AbstractContextManager[EventView]:
        """Begin a transaction that only reads, until the end of the block."""

    def read_standing(self, signature: str, environment: str) -> PlanStates:
        """Return the state of all plans for one graph in one environment."""
        with self.open_view() as events:
            return fold_steps(events.read_steps(signature, environment))

    def read_promotions(self, signature: str, environment: str) -> tuple[RecordedEvent, ...]:
        """Return the active promotions for one graph in one environment, latest first."""
        with self.open_view() as events:
            plans = fold_steps(events.read_steps(signature, environment)).promoted
            return tuple(_read_event_of(events, plan.promoted) for plan in plans if plan.promoted is not None)

    def read_decided(self, signature: str, environment: str) -> tuple[tuple[PlanState, RecordedEvent], ...]:
        """Return the state of each plan for one graph in one environment, with the event that set it."""
        with self.open_view() as events:
            plans = fold_steps(events.read_steps(signature, environment)).plans.values()
            return tuple((plan, _read_event_of(events, plan.last)) for plan in plans)

    def read_steps_by_environment(self, signature: str) -> Mapping[str, tuple[Step, ...]]:
        """Return the steps that decide the states for one graph, by environment."""
        with self.open_view() as events:
            return {name: tuple(events.read_steps(signature, name)) for name in events.list_environments(signature)}


def _read_event_of(events: EventView, step: Step) -> RecordedEvent:
    row = events.get_row(step.position)
    if row is None:
        raise LedgerError(f"event {step.position} is missing", "frx ledger verify")
    return read_event(*row)


def chain_decisions(events: EventView, decisions: Sequence[Decision]) -> tuple[RecordedEvent, ...]:
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
