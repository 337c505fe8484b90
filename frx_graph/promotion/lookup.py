"""Find the plan that is proved for a Dynamo graph in this environment. Only such a plan is applied unasked."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from frx_graph.capture.graph_signature import hash_compilation, hash_graph
from frx_graph.config import read_advise_config, read_policy_table
from frx_graph.distributed.consensus import has_several_ranks
from frx_graph.distributed.handshake import get_handshake
from frx_graph.distributed.plan_offer import PlanOffer
from frx_graph.errors import LedgerError
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.fast_path import read_decided
from frx_graph.options import BackendOptions
from frx_graph.promotion.active_plan import ActivePlans
from frx_graph.promotion.autopilot_trials import AutopilotTrials
from frx_graph.promotion.process_record import ProcessRecord
from frx_graph.promotion.promoted_plan import Promotion, Subject
from frx_graph.support.user_warning import WarnOnce


class PromotedPlans:
    """Look up plans in the ledger; let the autopilot search if nothing was decided; agree with the other ranks."""

    def __init__(self) -> None:
        warnings = WarnOnce()
        self.record = ProcessRecord()
        self.active = ActivePlans(self.record, warnings)
        self.trials = AutopilotTrials(self.record, self.active, warnings)

    def find(self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Promotion | None:
        """Return the plan for `dynamo`, compiled with `options`; None for the baseline. The autopilot may take the
        policy's time budget. All ranks of a distributed program must call this. Raises `LedgerError`, `OptionError` or
        `PolicyError` for a wrong project file, and `SerializationError` or `TrialError` if the autopilot cannot try the
        graph; of several ranks those that report it raise `AgreementError` instead."""
        if has_several_ranks():
            return self._find_agreed(dynamo, inputs, options)
        subject = Subject.identify(dynamo, inputs, options)
        found = self.active.look_up(subject, options)
        if found is not None or not self.trials.is_wanted(subject, options):
            return found
        return self.trials.prove(dynamo, inputs, options, subject)

    def _find_agreed(self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Promotion | None:
        """Return the plan that the first rank offers, and no rank objects to: docs/distributed.md has the protocol."""
        handshake = get_handshake().ensure_done(options)
        signature = hash_compilation(dynamo.graph, options.inner, options.inner_mode)
        if not handshake.covers(signature, options):
            return None
        # Made inside the agreement, so that errors reach the other ranks. All must be there, wait for the same graph,
        # and would take a plan for it, before a trial begins.
        get_subject = functools.cache(lambda: Subject.identify(dynamo, inputs, options))

        def propose() -> bytes | None:
            return self.make_offer(get_subject(), options)

        def prove() -> bytes | None:
            found = self.trials.prove(dynamo, inputs, options, get_subject())
            return None if found is None else _build_offer(get_subject(), options, found).encode()

        def validate(offered: bytes) -> str | None:
            return self.find_objection(get_subject(), options, offered)

        # Without the options: ranks with different ones must meet, so that the difference is reported at once.
        topic = f"{hash_graph(dynamo.graph)} {torch.is_grad_enabled()}"
        policy = options.policy or read_policy_table(read_advise_config(Path.cwd()))
        seconds = policy.agreement_seconds
        found = handshake.agree_on(topic, seconds, propose, validate)
        if found is not None and PlanOffer.model_validate_json(found).plan is None:
            found = handshake.agree_on(f"{topic} tried", policy.time_budget_seconds + seconds, prove, validate)
        return None if found is None else Promotion(PlanOffer.model_validate_json(found).make_plan(), get_subject())

    def make_offer(self, subject: Subject, options: BackendOptions) -> bytes | None:
        """Return an offer of the active plan, or of a search; None for neither. Raises `LedgerError`."""
        found = self.active.look_up(subject, options)
        if found is None and not self.trials.is_wanted(subject, options):
            return None
        return _build_offer(subject, options, found).encode()

    def find_objection(self, subject: Subject, options: BackendOptions, offered: bytes) -> str | None:
        """Return this rank's objection to the first rank's offer, or None."""
        offer = PlanOffer.model_validate_json(offered)
        objection = offer.find_objection(_build_offer(subject, options, None))
        if objection is not None or offer.plan is None:
            return objection
        if self.record.is_withdrawn(Promotion(offer.make_plan(), subject)):
            return f"plan {offer.plan} was rolled back in its process"
        try:
            with self.record.reach(subject.place):
                plans = read_decided(subject.place, subject.signature, subject.environment)
        except LedgerError:
            # A ledger that is missing or cannot be read has no objection.
            return None
        for known, _ in plans:
            if known.plan == offer.plan and known.state in (Kind.REJECTED, Kind.ROLLED_BACK):
                return f"plan {offer.plan} is {known.state.value} in its ledger, {subject.place}"
        return None


def _build_offer(subject: Subject, options: BackendOptions, found: Promotion | None) -> PlanOffer:
    return PlanOffer.make(
        None if found is None else found.plan,
        options=options,
        policy=subject.policy,
        signature=subject.signature,
        environment=subject.environment,
    )
