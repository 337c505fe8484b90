"""The plan that is proved for a graph of Dynamo's in this environment: all that is applied without being asked for.

It is looked up in the ledger; the autopilot tries to prove one where nothing was decided yet. Of several ranks of a
distributed program the first does that, and all apply what it finds, or none: docs/distributed.md.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import fx

from frx_graph.capture.graph_signature import compiled_signature, graph_signature
from frx_graph.compiler.plans import recorded_plan
from frx_graph.compiler.risk import permits
from frx_graph.config import advise_config, policy_of
from frx_graph.distributed.handshake import Ask, rank_opening, several_ranks
from frx_graph.distributed.plan_offer import PlanOffer
from frx_graph.errors import (
    FrxError,
    LedgerError,
    LedgerMissingError,
    LedgerRefusedError,
    LedgerUnreachableError,
    TravelError,
    TrialError,
)
from frx_graph.ledger.author import this_process
from frx_graph.ledger.decision import AUTOPILOT, Decision, Kind, as_reason
from frx_graph.ledger.expiry import expiry
from frx_graph.ledger.fast_path import append, decided, promotions, stands_only_elsewhere
from frx_graph.ledger.location import Location
from frx_graph.options import BackendOptions
from frx_graph.promotion.history import decided_against, left_alone, rejected
from frx_graph.promotion.promoted_plan import Promotion, Subject
from frx_graph.reports.progress import stages
from frx_graph.support.user_warning import warn_and_go_on
from frx_graph.trials.policy import TrialPolicy

_PATIENCE_SECONDS = 5.0
"""How long compiling a graph waits for other writers, or one that never ends, before the baseline must do."""


class PromotedPlans:
    """What was promoted, looked up graph by graph. That a plan is applied is recorded before it is: where that cannot
    be recorded, or somebody has just rolled it back, it is not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._applied: set[tuple[str, ...]] = set()
        self._withdrawn: set[tuple[str, ...]] = set()
        self._tried_seconds = 0.0
        self._time_is_over = False
        self._told_of_elsewhere = False
        self._told_of_untried = False
        self._unreachable: dict[Location, tuple[str, str]] = {}

    def withdraw(self, promotion: Promotion, reason: str) -> bool:
        """Record that a plan is rolled back; False where it was before. This process does not apply it any more, also
        where that cannot be recorded. Raises `LedgerError`."""
        with self._lock:
            if promotion.key in self._withdrawn:
                return False
            self._withdrawn.add(promotion.key)
        promotion.withdraw(as_reason(reason))
        return True

    def was_withdrawn(self, promotion: Promotion) -> bool:
        """Whether this process has rolled it back."""
        return promotion.key in self._withdrawn

    def find(self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Promotion | None:
        """The plan for `dynamo`, compiled as `options` say; None for the baseline. The autopilot may take as long as
        the policy's time budget. Every rank of a distributed program has to ask.

        Raises `LedgerError`; `OptionError` or `PolicyError` for a project file that is wrong; with the autopilot
        `TravelError` and `TrialError` for a graph that cannot be tried; and of several ranks `AgreementError` instead
        of most of that, on those that are to tell.
        """
        if several_ranks():
            return self._of_all_ranks(dynamo, inputs, options)
        subject = Subject.of(dynamo, inputs, options)
        found = self._looked_up(subject, options)
        if found is not None or not self._worth_trying(subject, options):
            return found
        return self._proved(dynamo, inputs, options, subject)

    def _of_all_ranks(self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Promotion | None:
        """The plan that the first rank has found or proved and that all apply. A trial is only begun when all ranks are
        there, wait for the same graph, and would take a plan for it."""
        ranks = rank_opening().open(options)
        if not ranks.asks_about(compiled_signature(dynamo.graph, options.inner, options.inner_mode), options):
            return None
        # What can go wrong with it is told to the others where it is first asked for.
        subject = functools.cache(lambda: Subject.of(dynamo, inputs, options))

        def find() -> bytes | None:
            return self.offer(subject(), options)

        def prove() -> bytes | None:
            found = self._proved(dynamo, inputs, options, subject())
            return None if found is None else _offer(subject(), options, found).encoded()

        def valid(found: bytes) -> str | None:
            return self.objection(subject(), options, found)

        # Not by the options: where they differ this is said, instead of waited for.
        about = f"{graph_signature(dynamo.graph)} {torch.is_grad_enabled()}"
        seconds = _policy(options).agreement_seconds
        found = ranks.ask(Ask(about, seconds), find, valid)
        if found is not None and PlanOffer.model_validate_json(found).plan is None:
            budget = _policy(options).time_budget_seconds
            found = ranks.ask(Ask(f"{about} tried", budget + seconds), prove, valid)
        return None if found is None else Promotion(PlanOffer.model_validate_json(found).made(), subject())

    def offer(self, subject: Subject, options: BackendOptions) -> bytes | None:
        """What the first rank offers the others: the plan that stands, or that the autopilot would try for one; None
        for neither. Raises `LedgerError`."""
        found = self._looked_up(subject, options)
        if found is None and not self._worth_trying(subject, options):
            return None
        return _offer(subject, options, found).encoded()

    def objection(self, subject: Subject, options: BackendOptions, offered: bytes) -> str | None:
        """What this rank has against what the first one offers; None if nothing."""
        offer = PlanOffer.model_validate_json(offered)
        return offer.objection(_offer(subject, options, None)) or self._own_objection(subject, offer)

    def _proved(
        self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions, subject: Subject
    ) -> Promotion | None:
        """The plan that stands when what could be tried was; also where a later trial could not be run, which is said.
        Where nothing stands then, raises what it could not be run for."""
        try:
            self._try(dynamo, inputs, options, subject)
        except (TravelError, TrialError) as error:
            with self._reaching(subject.place):
                found = self._standing(subject)
            if found is None:
                raise
            self._tell_of_untried(error)
            return found
        with self._reaching(subject.place):
            return self._standing(subject)

    def _try(self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions, subject: Subject) -> None:
        # What tries takes much longer to import than what has been decided takes to look up.
        from frx_graph.autopilot.search import try_graph
        from frx_graph.ledger.database.opening import check_writable

        # The budget is for all graphs of the process.
        left = subject.policy.time_budget_seconds - self._tried_seconds
        if left <= 0:
            self._told_that_time_is_over()
            return
        # Nobody is made to wait for a trial whose decision would be lost.
        with self._reaching(subject.place):
            check_writable(subject.place)
        with stages() as progress, self._counting_seconds(), self._reaching(subject.place):
            try_graph(
                dynamo,
                inputs,
                options,
                subject.policy,
                signature=subject.signature,
                environment=subject.environment,
                rejected=rejected(subject),
                seconds=left,
                record=lambda decisions: _record(subject, decisions),
                progress=lambda stage: progress(f"frx tries a graph, {stage}"),
            )

    @contextlib.contextmanager
    def _reaching(self, place: Location) -> Iterator[None]:
        """Where the ledger's server could not be reached, this process does not look anything up there any more: each
        graph would wait for it. That a plan is rolled back is still recorded, if the server is there again."""
        if (known := self._unreachable.get(place)) is not None:
            raise LedgerUnreachableError(*known)
        try:
            yield
        except LedgerUnreachableError as error:
            self._unreachable[place] = (error.message, error.hint)
            raise

    @contextlib.contextmanager
    def _counting_seconds(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._tried_seconds += time.monotonic() - began

    def _told_that_time_is_over(self) -> None:
        if not self._time_is_over:
            self._time_is_over = True
            warn_and_go_on(
                "the autopilot's time budget is used up: graphs that are compiled from now on are not tried in this "
                "process; the next one goes on"
            )

    def _tell_of_untried(self, error: FrxError) -> None:
        if not self._told_of_untried:
            self._told_of_untried = True
            warn_and_go_on(
                f"frx could not try all that measured times speak for ({error}); it applies what was proved before "
                "that, and your program is unaffected"
            )

    def _standing(self, subject: Subject) -> Promotion | None:
        try:
            promoted = promotions(subject.place, subject.signature, subject.environment)
        except LedgerMissingError:
            return None
        # What another policy has promoted may be of a risk that this one does not allow.
        allowed = (one.decision for one in promoted if permits(subject.policy.risk, one.decision.candidates))
        decision = next(allowed, None)
        if decision is None:
            return None
        plan = recorded_plan(decision.candidates)
        now = datetime.now(UTC)
        age = timedelta(days=subject.policy.decision_max_age_days)
        if (too_old := expiry(decision, age, now=now, by=this_process(AUTOPILOT))) is not None:
            # What was promoted under another policy may be too old for this one alone.
            if decision.policy == subject.policy.hash:
                append(subject.place, [too_old], patience_seconds=_PATIENCE_SECONDS)
            return None
        found = Promotion(plan, subject)
        if plan.hash != decision.plan or found.key in self._withdrawn:
            return None
        with self._lock:
            if found.key not in self._applied:
                append(subject.place, [_applied(decision, now)], patience_seconds=_PATIENCE_SECONDS)
                self._applied.add(found.key)
        return found

    def _looked_up(self, subject: Subject, options: BackendOptions) -> Promotion | None:
        with self._reaching(subject.place):
            found = self._standing(subject)
            if found is None and options.mode == "apply":
                self._tell_of_elsewhere(subject)
        return found

    def _tell_of_elsewhere(self, subject: Subject) -> None:
        """Once: whoever has waited for a trial wonders why nothing comes of it."""
        with contextlib.suppress(LedgerMissingError):
            if not self._told_of_elsewhere and stands_only_elsewhere(
                subject.place, subject.signature, subject.environment
            ):
                self._told_of_elsewhere = True
                warn_and_go_on(
                    f"frx does not apply what was promoted for graph {subject.signature}, since that was in another "
                    "environment: versions, device, threads, variables or settings of torch are not those of the "
                    "trial; frx trial tries it in this one"
                )

    def _worth_trying(self, subject: Subject, options: BackendOptions) -> bool:
        """Where nothing stands. What this process has rolled back counts also where that could not be recorded."""
        here = (str(subject.place), subject.signature, subject.environment)
        with self._lock:
            withdrawn = any(key[:3] == here for key in self._withdrawn)
        if options.mode != "autopilot" or withdrawn:
            return False
        with self._reaching(subject.place):
            return not decided_against(subject)

    def _own_objection(self, subject: Subject, offer: PlanOffer) -> str | None:
        """What this rank has against a plan, or its own ledger. One that cannot be read, or is not there, has
        nothing."""
        if offer.plan is None:
            return None
        if Promotion(offer.made(), subject).key in self._withdrawn:
            return f"plan {offer.plan} was rolled back in its process"
        try:
            with self._reaching(subject.place):
                plans = decided(subject.place, subject.signature, subject.environment)
        except LedgerError:
            return None
        for known, _ in plans:
            if known.plan == offer.plan and known.state in (Kind.REJECTED, Kind.ROLLED_BACK):
                return f"plan {offer.plan} is {known.state.value} in its ledger, {subject.place}"
        return None


def _record(subject: Subject, decisions: Sequence[Decision]) -> None:
    """Keep what a search has decided. Raises `TrialError`, which ends it, where somebody has decided otherwise since it
    began: nothing is to be promoted for a graph for which a plan was rolled back."""
    if left_alone(subject):
        raise TrialError("a plan of the graph was rolled back meanwhile, so that nothing more is tried")
    try:
        append(subject.place, decisions)
    except LedgerRefusedError as refused:
        raise TrialError(f"others have decided about the graph meanwhile: {refused.message}") from refused


def _policy(options: BackendOptions) -> TrialPolicy:
    return options.policy or policy_of(advise_config(Path.cwd()))


def _offer(subject: Subject, options: BackendOptions, found: Promotion | None) -> PlanOffer:
    return PlanOffer.of(
        None if found is None else found.plan,
        options=options,
        policy=subject.policy,
        signature=subject.signature,
        environment=subject.environment,
    )


def _applied(decision: Decision, now: datetime) -> Decision:
    reason = "promoted for this graph in this environment"
    if several_ranks():
        reason += f", offered to {dist.get_world_size()} ranks"
    author = this_process(AUTOPILOT)
    return decision.followed_by(Kind.APPLIED, reason=reason, by=author, at=now, policy=decision.policy)
