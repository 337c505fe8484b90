"""Let the autopilot search for a plan for a graph about which the ledger has decided nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from frx_graph.errors import LedgerRefusedError, SerializationError, TrialError
from frx_graph.ledger.decision import Decision
from frx_graph.ledger.fast_path import append_decisions
from frx_graph.options import BackendOptions
from frx_graph.promotion.active_plan import ActivePlans
from frx_graph.promotion.history import find_rejected, is_blocked, is_settled
from frx_graph.promotion.process_record import ProcessRecord
from frx_graph.promotion.promoted_plan import Promotion, Subject
from frx_graph.reports.progress import show_stages
from frx_graph.support.user_log import show_log
from frx_graph.support.user_warning import WarnOnce

if TYPE_CHECKING:
    from frx_graph.autopilot.search_log import SearchLog


class AutopilotTrials:
    """Prove plans within the policy's time budget, which all graphs of the process share."""

    def __init__(self, record: ProcessRecord, active: ActivePlans, warnings: WarnOnce) -> None:
        self._record = record
        self._active = active
        self._warnings = warnings
        self._used_seconds = 0.0
        self.searches: list[SearchLog] = []

    def is_wanted(self, subject: Subject, options: BackendOptions) -> bool:
        """Return whether to search for a plan of a graph without an active one: not if this process has rolled one
        back, recorded or not. Raises `LedgerError`."""
        if options.mode != "autopilot" or self._record.has_withdrawn_any(subject):
            return False
        with self._record.reach(subject.place):
            return not is_settled(subject)

    def prove(
        self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions, subject: Subject
    ) -> Promotion | None:
        """Search for a plan, and return the active one, or None. Raises `LedgerError`, and if a trial cannot run
        `SerializationError` or `TrialError`; if a plan was proved before, it only warns."""
        try:
            self._search(dynamo, inputs, options, subject)
        except (SerializationError, TrialError) as error:
            with self._record.reach(subject.place):
                found = self._active.find(subject)
            if found is None:
                raise
            self._warnings.warn(
                "search",
                f"frx could not try all rewrites that measured times favour ({error}); it applies the plan proved "
                "before, and your program is unaffected",
            )
            return found
        with self._record.reach(subject.place):
            return self._active.find(subject)

    def _search(self, dynamo: fx.GraphModule, inputs: Sequence[Any], options: BackendOptions, subject: Subject) -> None:
        # Slow imports, which a mere lookup does without.
        from frx_graph.autopilot.search import try_graph
        from frx_graph.autopilot.search_log import SearchLog
        from frx_graph.ledger.database.opening import check_writable

        left = subject.policy.time_budget_seconds - self._used_seconds
        if left <= 0:
            self._warnings.warn(
                "budget",
                "the autopilot's time budget is used up: graphs that are compiled from now on are not tried in this "
                "process; the next one goes on",
            )
            return
        # First, since the user must not wait for a trial whose decision would be lost.
        with self._record.reach(subject.place):
            check_writable(subject.place)
        began = time.monotonic()
        show_log()
        log = SearchLog(subject.signature, left)
        self.searches.append(log)

        def show_stage(stage: str) -> None:
            log.note_stage(stage)
            progress(f"frx tries a graph, {stage}")

        try:
            with show_stages() as progress, self._record.reach(subject.place), log:
                try_graph(
                    dynamo,
                    inputs,
                    options,
                    subject.policy,
                    signature=subject.signature,
                    environment=subject.environment,
                    rejected=find_rejected(subject),
                    seconds=left,
                    record=lambda decisions: _append_decisions(subject, decisions),
                    progress=show_stage,
                    log=log,
                )
        finally:
            self._used_seconds += time.monotonic() - began


def _append_decisions(subject: Subject, decisions: Sequence[Decision]) -> None:
    # A `TrialError` ends the search: nothing may be promoted for a graph of which a plan was rolled back meanwhile.
    if is_blocked(subject):
        raise TrialError("a plan of the graph was rolled back meanwhile, so nothing more is tried")
    try:
        append_decisions(subject.place, decisions)
    except LedgerRefusedError as refused:
        raise TrialError(f"others have decided about the graph meanwhile: {refused.message}") from refused
