"""The plan that is proved for a graph of Dynamo's in this environment: all that is applied without being asked for.

It is looked up in the ledger; the autopilot tries to prove one where nothing was decided yet. Of several ranks of a
distributed program the first does that, and all apply what it finds, or none: docs/distributed.md.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch import distributed as dist

from frx_graph.autopilot import try_graph
from frx_graph.capture.graph_signature import compiled_signature, graph_signature
from frx_graph.config import advise_config, policy_of
from frx_graph.current_plan import recorded_plan
from frx_graph.environment_key import environment_key
from frx_graph.errors import LedgerError, LedgerMissingError
from frx_graph.ledger.author import this_process
from frx_graph.ledger.decision import AUTOPILOT, Decision, Kind
from frx_graph.ledger.expiry import expiry
from frx_graph.ledger.location import Location, choose_location
from frx_graph.ledger.opening import open_ledger, open_to_read
from frx_graph.ledger.standing import NOTHING, Standing
from frx_graph.options import BackendOptions
from frx_graph.plan import Plan
from frx_graph.plan_offer import PlanOffer
from frx_graph.progress import stages
from frx_graph.rank_opening import Ask, rank_opening, several_ranks
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

    @staticmethod
    def of(dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> _Subject:
        config = advise_config(Path.cwd())
        device = next((t.device for t in inputs if isinstance(t, Tensor) and t.is_cuda), torch.device("cpu"))
        return _Subject(
            choose_location(None, config.ledger),
            compiled_signature(dynamo.graph, options.inner, options.inner_mode),
            environment_key(trial_setup(device)),
            options.policy or policy_of(config),
        )

    def offer(self, options: BackendOptions, plan: Plan | None) -> PlanOffer:
        return PlanOffer.of(
            plan, options=options, policy=self.policy, signature=self.signature, environment=self.environment
        )


class PromotedPlans:
    """What was promoted, looked up graph by graph. That a plan is applied is recorded before it is: where that cannot
    be recorded, or somebody has just rolled it back, it is not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._applied: set[tuple[str, str, str, str]] = set()

    def find(self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Plan | None:
        """The plan for `dynamo`, compiled as `options` say; None for the baseline. The autopilot may take as long as
        the policy's time budget. Every rank of a distributed program has to ask.

        Raises `LedgerError`; `OptionError` or `PolicyError` for a project file that is wrong; with the autopilot
        `TravelError` and `TrialError` for a graph that cannot be tried; and of several ranks `AgreementError` instead
        of most of that, on those that are to tell.
        """
        if several_ranks():
            return self._of_all_ranks(dynamo, inputs, options)
        subject = _Subject.of(dynamo, inputs, options)
        plan = self._standing(subject)
        if plan is not None or not _worth_trying(subject, options):
            return plan
        return self._proved(dynamo, inputs, options, subject)

    def _of_all_ranks(self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Plan | None:
        """The plan that the first rank has found or proved and that all apply. A trial is only begun when all ranks are
        there, wait for the same graph, and would take a plan for it."""
        ranks = rank_opening().open(options)
        if not ranks.asks_about(compiled_signature(dynamo.graph, options.inner, options.inner_mode), options):
            return None
        # What can go wrong with it is told to the others where it is first asked for.
        subject = functools.cache(lambda: _Subject.of(dynamo, inputs, options))

        def find() -> bytes | None:
            plan = self._standing(subject())
            if plan is None and not _worth_trying(subject(), options):
                return None
            return subject().offer(options, plan).encoded()

        def prove() -> bytes | None:
            plan = self._proved(dynamo, inputs, options, subject())
            return None if plan is None else subject().offer(options, plan).encoded()

        def valid(found: bytes) -> str | None:
            offer = PlanOffer.model_validate_json(found)
            return offer.objection(subject().offer(options, None)) or _own_objection(subject(), offer)

        # Not by the options: where they differ this is said, instead of waited for.
        about = f"{graph_signature(dynamo.graph)} {torch.is_grad_enabled()}"
        seconds = _policy(options).agreement_seconds
        found = ranks.ask(Ask(about, seconds), find, valid)
        if found is not None and PlanOffer.model_validate_json(found).plan is None:
            budget = _policy(options).time_budget_seconds
            found = ranks.ask(Ask(f"{about} tried", budget + seconds), prove, valid)
        return None if found is None else PlanOffer.model_validate_json(found).made()

    def _proved(
        self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions, subject: _Subject
    ) -> Plan | None:
        with stages() as progress:
            try_graph(
                dynamo,
                inputs,
                options,
                subject.policy,
                signature=subject.signature,
                environment=subject.environment,
                record=lambda decisions: open_ledger(subject.place).append(decisions),
                progress=lambda stage: progress(f"frx tries a graph, {stage}"),
            )
        return self._standing(subject)

    def _standing(self, subject: _Subject) -> Plan | None:
        try:
            promoted = open_to_read(subject.place).promotions(subject.signature, subject.environment)
        except LedgerMissingError:
            return None
        if not promoted:
            return None
        decision = promoted[0].decision
        plan = recorded_plan(decision.candidates)
        now = datetime.now(UTC)
        age = timedelta(days=subject.policy.decision_max_age_days)
        if (too_old := expiry(decision, age, now=now, by=this_process(AUTOPILOT))) is not None:
            open_ledger(subject.place).append([too_old])
            return None
        if plan.hash != decision.plan:
            return None
        with self._lock:
            key = (str(subject.place), subject.signature, subject.environment, decision.plan)
            if key not in self._applied:
                open_ledger(subject.place).append([_applied(decision, now)])
                self._applied.add(key)
        return plan


def _policy(options: BackendOptions) -> TrialPolicy:
    return options.policy or policy_of(advise_config(Path.cwd()))


def _worth_trying(subject: _Subject, options: BackendOptions) -> bool:
    return options.mode == "autopilot" and not _decided_against(subject)


def _own_objection(subject: _Subject, offer: PlanOffer) -> str | None:
    """What this rank's own ledger has against a plan. One that cannot be read, or is not there, has nothing."""
    if offer.plan is None:
        return None
    try:
        known = open_to_read(subject.place).standing(subject.signature, subject.environment).plans.get(offer.plan)
    except LedgerError:
        return None
    if known is None or known.state not in _DECIDED_AGAINST:
        return None
    return f"plan {offer.plan} is {known.state.value} in its ledger, {subject.place}"


def _decided_against(subject: _Subject) -> bool:
    """True where all that was decided about speaks against it, in this environment."""
    try:
        standing: Standing = open_to_read(subject.place).standing(subject.signature, subject.environment)
    except LedgerMissingError:
        standing = NOTHING
    states = {plan.state for plan in standing.plans.values()}
    return bool(states) and (states <= _DECIDED_AGAINST or Kind.ROLLED_BACK in states)


def _applied(decision: Decision, now: datetime) -> Decision:
    reason = "promoted for this graph in this environment"
    if several_ranks():
        reason += f", offered to {dist.get_world_size()} ranks"
    author = this_process(AUTOPILOT)
    return decision.followed_by(Kind.APPLIED, reason=reason, by=author, at=now, policy=decision.policy)
