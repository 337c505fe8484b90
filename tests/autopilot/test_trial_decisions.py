"""What a trial decides can be recorded, whatever it has met."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from frx_graph.autopilot.trial_decisions import decide_graph
from frx_graph.errors import summarize_error
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Decision, Kind, make_process_author
from frx_graph.ledger.location import parse_location
from frx_graph.records import Candidate
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import Load, TargetWorkload
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.environment_record import TrialEnvironment
from frx_graph.trials.executor import run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Programs
from frx_graph.trials.verdict import Outcome, Verdict

POLICY = TrialPolicy(process_pairs=2, quads_per_pair=3, steps_per_block=1, void_quads_allowed=0)
CANDIDATE = Candidate("propagate_layout", "a" * 16, ("convolution",), ("0,2,3,1",), 1e-3)
BREAKS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
HOSTILE = f"what was raised\0{BREAKS.join('abc')}\u202e\x1b[31m"


def decided(verdict: Verdict, environment: TrialEnvironment, others: int = 0) -> tuple[Decision, ...]:
    return decide_graph(
        "1" * 16,
        (CANDIDATE,),
        verdict,
        environment=environment,
        policy=POLICY,
        document=json.dumps({"schema": "frx_trial_v1"}),
        by=make_process_author("frx trial"),
        others=others,
    )


def here() -> TrialEnvironment:
    return read_trial_environment(torch.device("cpu"))


@pytest.mark.integration
def test_a_candidate_that_is_compiled_in_every_step_is_recorded(tmp_path: Path) -> None:
    """The reason is Dynamo's, which may go on with the user's stack."""

    def target(name: str) -> TargetWorkload:
        return TargetWorkload(f"{Path(__file__).parents[1] / 'trials' / 'faulty_programs.py'}:{name}")

    base = Load(target("none"), False, "eager", seed=0)
    run = run_trial(Programs(base, replace(base, workload=target("recompiles"))), POLICY, start_arm)
    assert run.environment is not None
    events = open_ledger(parse_location(str(tmp_path / "ledger.sqlite3"))).append(decided(run.verdict, run.environment))
    rejected = events[-1].decision
    assert rejected.kind is Kind.REJECTED
    assert rejected.reason.startswith("recompiles: ")
    assert "User stack trace" not in rejected.reason


def test_a_reason_is_one_printable_line(tmp_path: Path) -> None:
    verdict = Verdict(Outcome.REJECT, f"process: {HOSTILE}", None, early=True)
    events = open_ledger(parse_location(str(tmp_path / "ledger.sqlite3"))).append(decided(verdict, here()))
    assert [event.decision.reason for event in events[1:]] == ["process: what was raiseda b c[31m"] * 2


def test_a_reason_that_goes_on_and_on_is_cut() -> None:
    reason = decided(Verdict(Outcome.REJECT, "process: " + 5000 * "x", None, early=True), here())[-1].reason
    assert len(reason) == 1000
    assert reason.endswith("…")


def test_the_first_line_of_an_error_ends_at_any_break() -> None:
    for line_break in BREAKS:
        assert summarize_error(ValueError(f"first{line_break}second")) == "ValueError: first"


def test_trial_of_several_plans_decides_none_of_them() -> None:
    faster = Verdict(Outcome.PROMOTE, "10 % faster", None, early=False)
    assert [one.kind for one in decided(faster, here())] == [Kind.PROPOSED, Kind.TRIED, Kind.PROMOTED]
    found = decided(faster, here(), others=1)
    assert [one.kind for one in found] == [Kind.PROPOSED, Kind.TRIED]
    assert found[-1].reason == "together with 1 more, so this one is not judged: promote, 10 % faster"
    for outcome in Outcome:
        several = decided(replace(faster, outcome=outcome), here(), others=1)
        assert [one.kind for one in several] == [Kind.PROPOSED, Kind.TRIED]
    assert len(decided(replace(faster, reason=5000 * "x"), here(), others=1)[-1].reason) == 1000
