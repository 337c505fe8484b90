"""Find the plan that is proved for a Dynamo graph in this environment: the only plan that is applied unasked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from frx_graph.distributed.handshake import has_several_ranks
from frx_graph.options import BackendOptions
from frx_graph.promotion.active_plan import ActivePlans
from frx_graph.promotion.autopilot_trials import AutopilotTrials
from frx_graph.promotion.process_record import PlanWarnings, ProcessRecord
from frx_graph.promotion.promoted_plan import Promotion, Subject
from frx_graph.promotion.rank_agreement import RankAgreement


class PromotedPlans:
    """Look up plans in the ledger; let the autopilot search if nothing was decided; agree with the other ranks."""

    def __init__(self) -> None:
        warnings = PlanWarnings()
        self.record = ProcessRecord()
        self.active = ActivePlans(self.record, warnings)
        self.trials = AutopilotTrials(self.record, self.active, warnings)
        self.ranks = RankAgreement(self.record, self.active, self.trials)

    def find(self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions) -> Promotion | None:
        """Return the plan for `dynamo`, compiled with `options`; None for the baseline.

        The autopilot may take as long as the policy's time budget. All ranks of a distributed program must call this.

        Raises:
            LedgerError: the ledger cannot be used.
            OptionError, PolicyError: the project file is wrong.
            TravelError, TrialError: the autopilot cannot try the graph.
            AgreementError: of several ranks, instead of most of the above, on those that report it.

        """
        if has_several_ranks():
            return self.ranks.find(dynamo, inputs, options)
        subject = Subject.identify(dynamo, inputs, options)
        found = self.active.look_up(subject, options)
        if found is not None or not self.trials.is_wanted(subject, options):
            return found
        return self.trials.prove(dynamo, inputs, options, subject)
