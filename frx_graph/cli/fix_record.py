"""Record trials of changes of the source in the ledger."""

from __future__ import annotations

import json
from dataclasses import dataclass

from frx_graph.autopilot.fix_decisions import decide_change
from frx_graph.autopilot.source_trial import SourceTrial
from frx_graph.errors import LedgerError
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import make_process_author
from frx_graph.ledger.location import Location
from frx_graph.reports.render.document import to_json
from frx_graph.reports.trials.trial_document import build_trial_document

AUTHOR = "frx fix"


@dataclass(frozen=True, slots=True)
class FixRecorder:
    """Records the trials of one target's changes."""

    target: str
    train: bool
    inner: str
    place: Location

    def record(self, trial: SourceTrial, diff: str) -> str:
        """Record what the trial of a patch decides. Return the events, or why there are none: a ledger that cannot be
        written to does not make the proof wrong."""
        environment = trial.run.environment
        if environment is None:
            return "not recorded: the trial ended before an arm reported its machine"
        document = build_trial_document(
            trial.run,
            target=self.target,
            train=self.train,
            inner=self.inner,
            candidates=(),
            policy=trial.policy,
            decision=f"recorded in {self.place}",
        )
        own = to_json(document.model_copy(update={"allocation": environment.setup.allocation}))
        decisions = decide_change(
            self.target,
            diff,
            trial,
            environment=environment,
            document=json.dumps(own, allow_nan=False),
            by=make_process_author(AUTHOR),
        )
        try:
            *_, last = open_ledger(self.place).append(decisions)
        except LedgerError as error:
            return f"not recorded: {error}"
        return f"recorded in {self.place}: #{last.position}, patch {last.decision.plan}"
