"""The plan that stands in the ledger for a graph of Dynamo's in this environment: all that is applied without being
asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterable
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
from frx_graph.ledger.location import choose_location
from frx_graph.ledger.opening import open_ledger, open_to_read
from frx_graph.options import BackendOptions
from frx_graph.plan import Plan
from frx_graph.trials.environment import trial_setup


class PromotedPlans:
    """What was promoted, looked up graph by graph. That a plan is applied is recorded before it is: where that cannot
    be recorded, or somebody has just rolled it back, it is not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._applied: set[tuple[str, str, str]] = set()

    def find(self, dynamo: fx.GraphModule, inputs: Iterable[Any], options: BackendOptions) -> Plan | None:
        """The plan for `dynamo`, compiled as `options` say; None for the baseline. Raises `LedgerError`, and
        `OptionError` or `PolicyError` for a project file that is wrong."""
        config = advise_config(Path.cwd())
        place = choose_location(None, config.ledger)
        try:
            ledger = open_to_read(place)
        except LedgerMissingError:
            # Nothing was decided yet, or a trial is to make it later.
            return None
        device = next((t.device for t in inputs if isinstance(t, Tensor) and t.is_cuda), torch.device("cpu"))
        signature = compiled_signature(dynamo.graph, options.inner, options.inner_mode)
        environment = environment_key(trial_setup(device))
        promoted = ledger.promotions(signature, environment)
        if not promoted:
            return None
        decision = promoted[0].decision
        plan = recorded_plan(decision.candidates)
        now = datetime.now(UTC)
        author = this_process(AUTOPILOT)
        too_old = expiry(decision, timedelta(days=policy_of(config).decision_max_age_days), now=now, by=author)
        if too_old is not None or plan.hash != decision.plan:
            if too_old is not None:
                open_ledger(place).append([too_old])
            return None
        with self._lock:
            key = (signature, environment, decision.plan)
            if key not in self._applied:
                open_ledger(place).append([_applied(decision, now)])
                self._applied.add(key)
        return plan


def _applied(decision: Decision, now: datetime) -> Decision:
    reason = "promoted for this graph in this environment"
    author = this_process(AUTOPILOT)
    return decision.followed_by(Kind.APPLIED, reason=reason, by=author, at=now, policy=decision.policy)
