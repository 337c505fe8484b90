"""What a trial of a target decides, and that a ledger takes it."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from frx_graph.autopilot import target_trial
from frx_graph.autopilot.target_trial import TargetTrial, TrialRequest, make_decisions, try_target
from frx_graph.compiler.code_fingerprint import compute_environment_key
from frx_graph.errors import OptionError, TrialError
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.decision import Decision, Kind, make_process_author
from frx_graph.ledger.location import parse_location
from frx_graph.records import Candidate, Risk
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import Load, MadeGraph, TargetWorkload
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.trial_run import TrialRun
from frx_graph.trials.verdict import Outcome, Verdict

FORWARD = Candidate("propagate_layout", "a" * 16, ("convolution",), ("0,2,3,1",), 1e-3)
BACKWARD = Candidate("backward_layout", "b" * 16, ("convolution_backward",), ("0,2,3,1",))
OTHER = Candidate("onednn_products", "c" * 16, ("mm",), ("dot",))
GRAPHS = (MadeGraph("1" * 16, (FORWARD, BACKWARD)), MadeGraph("2" * 16, (OTHER,)))
ENVIRONMENT = read_trial_environment(torch.device("cpu"))
DOCUMENT = json.dumps({"schema": "frx_trial_v1", "verdict": "promote"})


def decide(trial: TargetTrial) -> tuple[Decision, ...]:
    own = trial.run.list_verdicts()[-1]
    return make_decisions(trial, own, TrialPolicy(), DOCUMENT, make_process_author("frx trial"))


def tried(outcome: Outcome, graphs: tuple[MadeGraph, ...] = GRAPHS[:1]) -> TargetTrial:
    verdict = Verdict(outcome, "because it was measured", None, early=False)
    return TargetTrial(TrialRun((), verdict, (), ENVIRONMENT, ("1" * 16, "2" * 16)), graphs)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.PROMOTE, Kind.PROMOTED),
        (Outcome.REJECT, Kind.REJECTED),
        (Outcome.EQUIVALENT, Kind.REJECTED),
        (Outcome.INCONCLUSIVE, Kind.INCONCLUSIVE),
    ],
)
def test_the_one_graph_gets_its_decision_and_a_ledger_takes_it(tmp_path: Path, outcome: Outcome, kind: Kind) -> None:
    found = decide(tried(outcome))
    assert [(one.signature, one.kind) for one in found] == [
        ("1" * 16, each) for each in (Kind.PROPOSED, Kind.TRIED, kind)
    ]
    assert [one.trial is not None for one in found] == [False, True, False]
    ledger = open_ledger(parse_location(str(tmp_path / "ledger.sqlite3")))
    ledger.append(found)
    promoted = ledger.read_promotions("1" * 16, compute_environment_key(ENVIRONMENT.setup))
    assert [one.decision.candidates for one in promoted] == [(FORWARD, BACKWARD)] * (kind is Kind.PROMOTED)
    # Once more, also after it was rolled back: somebody has asked for it.
    ledger.append(decide(tried(outcome)))


@pytest.mark.parametrize("outcome", Outcome)
def test_trial_of_several_graphs_decides_none_of_them(tmp_path: Path, outcome: Outcome) -> None:
    several = tried(outcome, GRAPHS)
    assert not several.promotes
    found = decide(several)
    assert [(one.signature, one.kind) for one in found] == [
        (graph.signature, each) for graph in GRAPHS for each in (Kind.PROPOSED, Kind.TRIED)
    ]
    ledger = open_ledger(parse_location(str(tmp_path / "ledger.sqlite3")))
    ledger.append(found)
    here = compute_environment_key(ENVIRONMENT.setup)
    assert all(ledger.read_promotions(graph.signature, here) == () for graph in GRAPHS)
    # What one of them was promoted for by itself stays.
    alone = decide(tried(Outcome.PROMOTE))
    ledger.append([*alone, *found])
    assert len(ledger.read_promotions("1" * 16, here)) == 1


def test_a_graph_that_occurs_twice_is_one() -> None:
    again = MadeGraph("1" * 16, (replace(FORWARD, predicted_seconds=2e-3), BACKWARD))
    assert tried(Outcome.PROMOTE, (GRAPHS[0], again)).promotes
    # Its backward was compiled in one place only: that is another plan.
    assert not tried(Outcome.PROMOTE, (GRAPHS[0], replace(again, applied=(FORWARD,)))).promotes


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Candidate | str, ...]]:
    """What is asked of processes that propose: choices, and rewrites."""
    found: list[tuple[Candidate | str, ...]] = []

    def proposed(load: Load, rewrites: Sequence[str], seconds: float, _: object) -> tuple[MadeGraph, ...]:
        assert 590 < seconds <= 600
        found.append((*load.candidates, *rewrites))
        return GRAPHS

    monkeypatch.setattr(target_trial, "propose_rewrites", proposed)
    return found


BASE = Load(TargetWorkload("model.py:build"), False, "inductor", 0)


def alone(name: str, graphs: tuple[MadeGraph, ...], risk: Risk = Risk.MEDIUM) -> tuple[MadeGraph, ...]:
    propose = functools.partial(target_trial._propose, time.monotonic() + 600, start_arm)
    return target_trial._select_candidate(name, BASE, graphs, ("hoist_copy", "onednn_products"), risk, propose)


def test_a_layout_is_one_decision_forward_and_backward(asked) -> None:
    alone("propagate_layout", GRAPHS)
    alone("onednn_products", GRAPHS)
    assert asked == [("propagate_layout", "backward_layout"), ("onednn_products",)]


def test_known_proposals_are_not_requested(asked) -> None:
    only = (MadeGraph("1" * 16, (FORWARD, BACKWARD)),)
    assert alone("propagate_layout", only) == only
    assert asked == []


def test_a_way_to_compile_is_about_all_graphs(asked) -> None:
    off, eager = (Candidate("inner_choice", "", (), (name,)) for name in ("layout_optimization_off", "eager"))
    graphs = (replace(GRAPHS[0], untried=(off, eager)), GRAPHS[1])
    assert [graph.applied for graph in alone("layout_optimization_off", graphs)] == [(off,), (off,)]
    assert asked == []
    alone("eager", graphs)
    assert asked == [(eager, "hoist_copy", "onednn_products")]


@pytest.mark.parametrize(
    ("name", "graphs", "hint"),
    [
        ("propagate_layot", GRAPHS, "did you mean 'propagate_layout'"),
        ("nothing alike", GRAPHS, "candidates: onednn_products, propagate_layout"),
        ("hoist_copy", (), "measured times favour no rewrite"),
    ],
)
def test_rewrite_without_a_candidate_is_refused(name: str, graphs: tuple[MadeGraph, ...], hint: str) -> None:
    with pytest.raises(OptionError, match=hint):
        alone(name, graphs)


@pytest.mark.parametrize("name", ["freezing", "onednn_products"])
def test_candidate_above_the_allowed_risk_is_not_tried_alone(asked, name: str) -> None:
    freezing = Candidate("inner_choice", "", (), ("freezing",))
    graphs = (replace(GRAPHS[0], untried=(freezing,)), GRAPHS[1])
    with pytest.raises(OptionError, match=rf"candidate '{name}' is of a higher risk .*risk is LOW: raise it"):
        alone(name, graphs, Risk.LOW)
    assert asked == []
    alone(name, graphs, Risk.MEDIUM)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds; asking for candidates takes 70, and what is tried is told what is left."""
    now = [0.0]
    monkeypatch.setattr(target_trial.time, "monotonic", lambda: now[0])

    def proposed(_: Load, __: Sequence[str], seconds: float, ___: object) -> tuple[MadeGraph, ...]:
        now[0] += min(70.0, seconds)
        if seconds < 70:
            raise TrialError("the program does not run: an arm did not answer")
        return GRAPHS

    def run_trial(_: Any, policy: TrialPolicy, *__: Any, **___: Any) -> TrialRun:
        now.append(policy.time_budget_seconds)
        return tried(Outcome.REJECT).run

    monkeypatch.setattr(target_trial, "propose_rewrites", proposed)
    monkeypatch.setattr(target_trial, "run_trial", run_trial)
    return now


@pytest.mark.parametrize(("candidate", "left"), [(None, 130.0), ("onednn_products", 60.0)])
def test_all_of_it_has_one_time_budget(clock: list[float], candidate: str | None, left: float) -> None:
    asked = TrialRequest(TargetWorkload("model.py:build"), False, "inductor", candidate, against_itself=False)
    assert try_target(asked, TrialPolicy(time_budget_seconds=200), lambda _: None) is not None
    assert clock[1:] == [left]


def test_a_budget_that_ends_while_candidates_are_asked_for_is_named(clock: list[float]) -> None:
    asked = TrialRequest(TargetWorkload("model.py:build"), False, "inductor", None, against_itself=False)
    with pytest.raises(TrialError, match=r"time budget ended .*raise time_budget_seconds"):
        try_target(asked, TrialPolicy(time_budget_seconds=30), lambda _: None)
    assert len(clock) == 1
