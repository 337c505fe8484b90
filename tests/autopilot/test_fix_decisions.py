"""What the ledger keeps of a change of the source."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from frx_graph.autopilot.fix_decisions import decide_change, hash_patch
from frx_graph.autopilot.source_trial import SourceTrial
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Decision, Kind, make_process_author
from frx_graph.ledger.location import parse_location
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.trial_run import Gate, GateResult, TrialRun
from frx_graph.trials.verdict import Outcome, TrialStatistics, Verdict

DIFF = "--- a/model.py\n+++ b/model.py\n@@ -1 +1 @@\n-y = x.contiguous()\n+y = x\n"


def decide(ratio: float, outcome: Outcome, *, quads: int = 36, failed: bool = False) -> tuple[Decision, ...]:
    found = TrialStatistics(ratio, ratio - 0.02, ratio + 0.02, quads, 6, (ratio,) * 6, 0)
    gates = (GateResult(Gate.NUMERICS, False, "it differs"),) if failed else ()
    run = TrialRun(gates, Verdict(outcome, "as measured", None if failed else found, early=False), (), None, ())
    return decide_change(
        "model.py:build",
        DIFF,
        SourceTrial(run, TrialPolicy()),
        environment=read_trial_environment(torch.device("cpu")),
        document=json.dumps({"schema": "frx_trial_v1"}),
        by=make_process_author("frx fix"),
    )


@pytest.mark.parametrize(
    ("ratio", "outcome", "how", "ended"),
    [
        (1.2, Outcome.PROMOTE, {}, "proved"),
        # A change of the source needs no gain.
        (1.0, Outcome.EQUIVALENT, {}, "proved"),
        (0.9, Outcome.REJECT, {}, "rejected"),
        (1.0, Outcome.REJECT, {"failed": True}, "rejected"),
        (1.0, Outcome.INCONCLUSIVE, {"quads": 3}, "open"),
    ],
)
def test_events_follow_the_proof(
    ratio: float, outcome: Outcome, how: dict[str, Any], ended: str, tmp_path: Path
) -> None:
    decisions = decide(ratio, outcome, **how)
    assert [one.kind for one in decisions] == [Kind.PROPOSED, Kind.TRIED]
    assert [one.trial is not None for one in decisions] == [False, True]
    assert decisions[-1].reason.startswith(f"{ended}: ")
    events = open_ledger(parse_location(str(tmp_path / "ledger.sqlite3"))).append(decisions)
    assert {event.decision.plan for event in events} == {hashlib.sha256(DIFF.encode()).hexdigest()[:16]}


def test_patch_is_named_by_its_text() -> None:
    assert hash_patch(DIFF) != hash_patch(DIFF.replace("y = x\n", "y = x  # no copy\n"))
