"""Look up the plan that the ledger has promoted for a graph in this environment."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from frx_graph.compiler.plans import is_permitted, make_recorded_plan
from frx_graph.errors import LedgerMissingError
from frx_graph.ledger.decision import BACKEND, make_expiry, make_process_author
from frx_graph.ledger.fast_path import append_decisions, find_promotion_elsewhere, read_evidence, read_promotions
from frx_graph.options import BackendOptions
from frx_graph.promotion.process_record import PATIENCE_SECONDS, ProcessRecord
from frx_graph.promotion.promoted_plan import Promotion, Subject
from frx_graph.support.user_warning import WarnOnce
from frx_graph.trials.environment_record import TrialSetup
from frx_graph.trials.setup_changes import describe_setup_changes


class ActivePlans:
    """Find active plans, and record each that is found as applied."""

    def __init__(self, record: ProcessRecord, warnings: WarnOnce) -> None:
        self._record = record
        self._warnings = warnings

    def look_up(self, subject: Subject, options: BackendOptions) -> Promotion | None:
        """Return the active plan; in mode "apply" warn if only another environment has one. Raises `LedgerError`."""
        with self._record.reach(subject.place):
            found = self.find(subject)
            if found is None and options.mode == "apply" and not self._warnings.has_warned("elsewhere"):
                with contextlib.suppress(LedgerMissingError):
                    self._warn_if_elsewhere(subject)
        return found

    def _warn_if_elsewhere(self, subject: Subject) -> None:
        other = find_promotion_elsewhere(subject.place, subject.signature, subject.environment)
        if other is None:
            return
        trial = read_evidence(subject.place, other)
        text = None if trial is None else trial.decision.trial
        differs = _compare_setups({} if text is None else json.loads(text), subject.setup)
        self._warnings.warn(
            "elsewhere",
            f"frx does not apply the plan of graph {subject.signature}: it was promoted in another environment. What "
            f"differs: {differs}. frx trial tries it in this one",
        )

    def find(self, subject: Subject) -> Promotion | None:
        """Return the active plan, once it is recorded as applied, or None. Raises `LedgerError`."""
        try:
            promoted = read_promotions(subject.place, subject.signature, subject.environment)
        except LedgerMissingError:
            return None
        # Another policy may have promoted plans of a risk that this one does not allow.
        allowed = (one.decision for one in promoted if is_permitted(subject.policy.risk, one.decision.candidates))
        decision = next(allowed, None)
        if decision is None:
            return None
        plan = make_recorded_plan(decision.candidates)
        now = datetime.now(UTC)
        age = timedelta(days=subject.policy.decision_max_age_days)
        if (too_old := make_expiry(decision, age, now=now, by=make_process_author(BACKEND))) is not None:
            # A promotion under another policy may be too old for this one only.
            if decision.policy == subject.policy.hash:
                append_decisions(subject.place, [too_old], patience_seconds=PATIENCE_SECONDS)
            return None
        found = Promotion(plan, subject)
        if plan.hash != decision.plan or self._record.is_withdrawn(found):
            return None
        self._record.record_applied(found, decision, now)
        return found


def _compare_setups(trial: Mapping[str, Any], setup: TrialSetup) -> str:
    before = trial.get("environment")
    # A document of another version may say less.
    recorded = before.get("setup") if isinstance(before, Mapping) else None
    return describe_setup_changes(recorded, setup) if isinstance(recorded, Mapping) else "its record does not tell"
