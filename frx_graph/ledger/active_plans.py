"""What the events of one graph in one environment come to: which plan stands now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from frx_graph.ledger.decision import Decision, Kind, Recorded
from frx_graph.ledger.transitions import STANDING, next_state


@dataclass(frozen=True, slots=True)
class Step:
    """What the fold needs of an event."""

    position: int
    kind: Kind
    plan: str
    decided_by: str
    recorded_at: datetime

    @staticmethod
    def of(event: Recorded) -> Step:
        """The event as the fold sees it."""
        decision = event.decision
        return Step(event.position, decision.kind, decision.plan, decision.decided_by, decision.recorded_at)


@dataclass(frozen=True, slots=True)
class PlanState:
    """Where one plan has come to. `last` is the step that brought it there, which may be another plan's rollback;
    `promoted` that of its last promotion, whether or not it still stands."""

    plan: str
    state: Kind
    last: Step
    promoted: Step | None

    @property
    def stands(self) -> bool:
        """Whether the plan may be applied."""
        return self.state in STANDING


@dataclass(frozen=True, slots=True)
class Standing:
    """The states of all plans for one graph in one environment, and the steps that must not have been taken."""

    plans: Mapping[str, PlanState]
    illegal: tuple[Step, ...] = ()

    @property
    def promoted(self) -> tuple[PlanState, ...]:
        """The plans that may be applied, last promoted first."""
        return tuple(sorted((plan for plan in self.plans.values() if plan.stands), key=_promotion, reverse=True))

    @property
    def current(self) -> PlanState | None:
        """The plan to apply: of those that stand the last promoted. None: the baseline."""
        return next(iter(self.promoted), None)

    def objection(self, decision: Decision) -> str | None:
        """Why this must not be decided about its plan now; None if it may."""
        known = self.plans.get(decision.plan)
        if _next(known, decision.kind, decision.decided_by) is not None:
            return None
        where = f"{decision.signature} in environment {decision.environment}"
        found = f"is {known.state.value} since event {known.last.position}" if known else "was never proposed"
        return f"plan {decision.plan} cannot be {decision.kind.value} for {where}: there it {found}"

    def after(self, step: Step) -> Standing:
        """What stands after one more step; one that must not be taken changes nothing and is kept in `illegal`."""
        known = self.plans.get(step.plan)
        state = _next(known, step.kind, step.decided_by)
        if state is None:
            return Standing(self.plans, (*self.illegal, step))
        plans = dict(self.plans)
        if state is Kind.ROLLED_BACK and known is not None and known.stands:
            # Back to the baseline, not to whatever was promoted before: that is to be tried again first.
            for name, other in self.plans.items():
                if other.stands:
                    plans[name] = PlanState(name, Kind.EXPIRED, step, other.promoted)
        promoted = step if step.kind is Kind.PROMOTED else known.promoted if known is not None else None
        plans[step.plan] = PlanState(step.plan, state, step, promoted)
        return Standing(plans, self.illegal)


NOTHING = Standing({})
"""What stands where nothing was ever decided."""


def fold(steps: Iterable[Step]) -> Standing:
    """What the steps of one graph in one environment, in their order, come to."""
    standing = NOTHING
    for step in steps:
        standing = standing.after(step)
    return standing


def elsewhere(steps: Mapping[str, Iterable[Step]], environment: str) -> Mapping[str, tuple[PlanState, ...]]:
    """The plans that stand in other environments than `environment`, by fingerprint: to be tried here first, never to
    be trusted. `steps` are those of one graph, by environment."""
    others = {name: fold(each).promoted for name, each in steps.items() if name != environment}
    return {name: promoted for name, promoted in others.items() if promoted}


def _next(known: PlanState | None, kind: Kind, decided_by: str) -> Kind | None:
    if known is None:
        return next_state(None, kind, decided_by, was_promoted=False)
    return next_state(known.state, kind, decided_by, was_promoted=known.promoted is not None)


def _promotion(plan: PlanState) -> int:
    return plan.promoted.position if plan.promoted is not None else 0
