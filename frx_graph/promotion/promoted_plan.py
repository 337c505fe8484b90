"""Hold a plan that was promoted for a graph, read the step times that its trial promised, and roll it back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import fx

from frx_graph.capture.graph_signature import hash_compilation
from frx_graph.compiler.code_fingerprint import compute_environment_key
from frx_graph.config import read_advise_config, read_policy_table
from frx_graph.errors import LedgerError
from frx_graph.ledger.decision import BACKEND, RecordedEvent, make_process_author, make_rollbacks
from frx_graph.ledger.fast_path import append_decisions, read_evidence, read_promotions
from frx_graph.ledger.location import Location, choose_location
from frx_graph.monitor.health_signals import PromisedTimes, read_promised_times
from frx_graph.options import BackendOptions
from frx_graph.plan import Plan
from frx_graph.support.allocator import read_allocation
from frx_graph.trials.environment import find_device, read_trial_setup
from frx_graph.trials.environment_record import TrialSetup
from frx_graph.trials.policy import TrialPolicy

_PATIENCE_SECONDS = 5.0
"""Longest wait of a user's step, in which a plan is rolled back, for other writers of the ledger."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A graph in its environment, with the ledger and the policy of decisions about it."""

    place: Location
    signature: str
    environment: str
    setup: TrialSetup
    """What `environment` is the fingerprint of, with the code of this package."""
    policy: TrialPolicy

    @staticmethod
    def identify(dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Subject:
        """Return the subject of a Dynamo graph that is compiled with `options`. Raises `OptionError` or `PolicyError`
        for a wrong project file, `LedgerError` for a wrong ledger name."""
        config = read_advise_config(Path.cwd())
        setup = read_trial_setup(find_device(inputs))
        return Subject(
            choose_location(None, config.ledger),
            hash_compilation(dynamo.graph, options.inner, options.inner_mode),
            compute_environment_key(setup),
            setup,
            options.policy or read_policy_table(config),
        )


@dataclass(frozen=True, slots=True)
class Promotion:
    """A promoted plan, to be applied to the graph of `subject`."""

    plan: Plan
    subject: Subject

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Equal for the same plan of the same graph in the same environment and ledger."""
        return (str(self.subject.place), self.subject.signature, self.subject.environment, self.plan.hash)

    def read_promise(self) -> PromisedTimes | None:
        """Return the step times of the plan's trial; None if the ledger has none, or cannot be read."""
        with contextlib.suppress(LedgerError):
            for event in self._find_active():
                trial = read_evidence(self.subject.place, event)
                if trial is not None and trial.decision.trial is not None:
                    return read_promised_times(json.loads(trial.decision.trial), read_allocation())
        return None

    def withdraw(self, reason: str) -> None:
        """Record that the plan is rolled back, if it is still active. Raises `LedgerError`, also for a ledger that does
        not know the plan: another rank may have offered it."""
        by = make_process_author(BACKEND)
        if active := self._find_active():
            policy = self.subject.policy.hash
            events = make_rollbacks(active, reason=reason, by=by, now=datetime.now(UTC), policy=policy)
            append_decisions(self.subject.place, events, patience_seconds=_PATIENCE_SECONDS)
        elif not self._is_known():
            raise LedgerError(f"the ledger {self.subject.place} does not know plan {self.plan.hash}")

    def _find_active(self) -> tuple[RecordedEvent, ...]:
        subject = self.subject
        found = read_promotions(subject.place, subject.signature, subject.environment)
        return tuple(event for event in found if event.decision.plan == self.plan.hash)

    def _is_known(self) -> bool:
        from frx_graph.ledger.database.opening import open_to_read

        subject = self.subject
        return self.plan.hash in open_to_read(subject.place).read_standing(subject.signature, subject.environment).plans
