"""The plan that is proved for a graph of Dynamo's in this environment: all that is applied without being asked for.

It is looked up in the ledger; the autopilot tries to prove one where nothing was decided yet.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.capture.graph_signature import compiled_signature
from frx_graph.config import advise_config, policy_of
from frx_graph.current_plan import recorded_plan
from frx_graph.environment_key import environment_key
from frx_graph.errors import LedgerMissingError
from frx_graph.ledger.author import this_process
from frx_graph.ledger.decision import AUTOPILOT, Decision, Kind
from frx_graph.ledger.expiry import expiry
from frx_graph.ledger.location import Location, choose_location
from frx_graph.ledger.quickly import append, promotions
from frx_graph.ledger.standing import NOTHING, Standing
from frx_graph.options import BackendOptions
from frx_graph.plan import Plan
from frx_graph.progress import stages
from frx_graph.trials.environment import trial_setup
from frx_graph.trials.policy import TrialPolicy

_DECIDED_AGAINST = frozenset({Kind.REJECTED, Kind.ROLLED_BACK})
"""What is not tried again in this environment until somebody asks."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """A graph, where it runs, and what decisions about it go by."""

    place: Location
    signature: str
    environment: str
    policy: TrialPolicy


class PromotedPlans:
    """What was promoted, looked up graph by graph. That a plan is applied is recorded before it is: where that cannot
    be recorded, or somebody has just rolled it back, it is not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._applied: set[tuple[str, str, str, str]] = set()

    def find(self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Plan | None:
        """The plan for `dynamo`, compiled as `options` say; None for the baseline. The autopilot may take as long as
        the policy's time budget.

        Raises `LedgerError`; `OptionError` or `PolicyError` for a project file that is wrong; and with the autopilot
        `TravelError` and `TrialError` for a graph that cannot be tried.
        """
        config = advise_config(Path.cwd())
        device = next((t.device for t in inputs if isinstance(t, Tensor) and t.is_cuda), torch.device("cpu"))
        subject = _Subject(
            choose_location(None, config.ledger),
            compiled_signature(dynamo.graph, options.inner, options.inner_mode),
            environment_key(trial_setup(device)),
            options.policy or policy_of(config),
        )
        plan = self._standing(subject)
        if plan is not None or options.mode != "autopilot" or _decided_against(subject):
            return plan
        # What tries takes much longer to import than what has been decided takes to look up.
        from frx_graph.autopilot import try_graph

        with stages() as progress:
            try_graph(
                dynamo,
                inputs,
                options,
                subject.policy,
                signature=subject.signature,
                environment=subject.environment,
                record=lambda decisions: append(subject.place, decisions),
                progress=lambda stage: progress(f"frx tries a graph, {stage}"),
            )
        return self._standing(subject)

    def _standing(self, subject: _Subject) -> Plan | None:
        try:
            promoted = promotions(subject.place, subject.signature, subject.environment)
        except LedgerMissingError:
            return None
        if not promoted:
            return None
        decision = promoted[0].decision
        plan = recorded_plan(decision.candidates)
        now = datetime.now(UTC)
        age = timedelta(days=subject.policy.decision_max_age_days)
        if (too_old := expiry(decision, age, now=now, by=this_process(AUTOPILOT))) is not None:
            append(subject.place, [too_old])
            return None
        if plan.hash != decision.plan:
            return None
        with self._lock:
            key = (str(subject.place), subject.signature, subject.environment, decision.plan)
            if key not in self._applied:
                append(subject.place, [_applied(decision, now)])
                self._applied.add(key)
        return plan


def _decided_against(subject: _Subject) -> bool:
    """True where all that was decided about speaks against it, in this environment."""
    from frx_graph.ledger.opening import open_to_read

    try:
        standing: Standing = open_to_read(subject.place).standing(subject.signature, subject.environment)
    except LedgerMissingError:
        standing = NOTHING
    states = {plan.state for plan in standing.plans.values()}
    return bool(states) and (states <= _DECIDED_AGAINST or Kind.ROLLED_BACK in states)


def _applied(decision: Decision, now: datetime) -> Decision:
    reason = "promoted for this graph in this environment"
    author = this_process(AUTOPILOT)
    return decision.followed_by(Kind.APPLIED, reason=reason, by=author, at=now, policy=decision.policy)
