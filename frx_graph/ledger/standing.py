"""What the events of one graph in one environment come to: which plan stands now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

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
    """Where one plan has come to. `promoted` and `last` are the steps of its last promotion, whether or not that still
    stands, and of its last event."""

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
    """The states of all plans for one graph in one environment, and the events that no rule allows."""

    plans: Mapping[str, PlanState]
    illegal: tuple[Step, ...] = ()

    @property
    def promoted(self) -> tuple[PlanState, ...]:
        """The plans that may be applied, last promoted first."""
        standing = [plan for plan in self.plans.values() if plan.stands]
        return tuple(sorted(standing, key=_promotion, reverse=True))

    @property
    def current(self) -> PlanState | None:
        """The plan to apply: of those that stand the last promoted. None: the baseline."""
        return next(iter(self.promoted), None)

    @property
    def rolled_back(self) -> tuple[PlanState, ...]:
        """The plans that were rolled back here and that nobody has asked for since. While there are any, nothing is to
        be tried here unasked."""
        return tuple(plan for plan in self.plans.values() if plan.state is Kind.ROLLED_BACK)

    def objection(self, decision: Decision) -> str | None:
        """Why this must not be decided about its plan now; None if it may."""
        known = self.plans.get(decision.plan)
        if next_state(known.state if known else None, decision.kind, decision.decided_by) is not None:
            return None
        where = f"{decision.signature} in environment {decision.environment}"
        found = f"is {known.state.value} since event {known.last.position}" if known else "was never proposed"
        return f"plan {decision.plan} cannot be {decision.kind.value} for {where}: there it {found}"

    def after(self, step: Step) -> Standing:
        """What stands after one more event; one that must not follow changes nothing and is kept in `illegal`."""
        known = self.plans.get(step.plan)
        state = next_state(known.state if known else None, step.kind, step.decided_by)
        if state is None:
            return Standing(self.plans, (*self.illegal, step))
        plans = dict(self.plans)
        if state is Kind.ROLLED_BACK and (known is None or known.state is not Kind.ROLLED_BACK):
            # Back to the baseline, not to whatever was promoted before: that is to be tried again first.
            for name, other in self.plans.items():
                if other.stands:
                    plans[name] = PlanState(name, Kind.EXPIRED, step, other.promoted)
        promoted = step if step.kind is Kind.PROMOTED else known.promoted if known else None
        plans[step.plan] = PlanState(step.plan, state, step, promoted)
        return Standing(plans, self.illegal)

    def too_old(self, now: datetime, max_age: timedelta) -> tuple[PlanState, ...]:
        """The plans that stand although their last promotion is more than `max_age` ago: each is to be recorded as
        expired before anything is applied. A promotion in the future (another machine's clock) is not old."""
        return tuple(plan for plan in self.promoted if plan.promoted and now - plan.promoted.recorded_at > max_age)


NOTHING = Standing({})
"""What stands where nothing was ever decided."""


def fold(steps: Iterable[Step]) -> Standing:
    """What the steps of one graph in one environment, in their order, come to."""
    standing = NOTHING
    for step in steps:
        standing = standing.after(step)
    return standing


def elsewhere(steps: Mapping[str, Iterable[Step]], environment: str) -> Mapping[str, tuple[PlanState, ...]]:
    """The plans that stand in other environments than `environment`, by fingerprint: to be tried first here, never to
    be trusted. `steps` are those of one graph, by environment."""
    others = {name: fold(each).promoted for name, each in steps.items() if name != environment}
    return {name: promoted for name, promoted in others.items() if promoted}


def _promotion(plan: PlanState) -> int:
    return plan.promoted.position if plan.promoted else 0
