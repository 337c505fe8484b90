"""`frx trial` as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from frx_graph.autopilot import target_trial
from frx_graph.autopilot.target_trial import TargetTrial
from frx_graph.cli.main import run
from frx_graph.ledger.database.opening import open_ledger
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.store import Ledger
from frx_graph.ledger.verification import verify
from frx_graph.records import Candidate
from frx_graph.reports.trials.trial_document import TrialDocument
from frx_graph.trials.arm_messages import MadeGraph
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.trial_run import Gate, TrialRun
from frx_graph.trials.verdict import Outcome, Verdict

MODEL = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval(), (torch.randn(1, 8, 12, 12),)

def broken():
    return nn.Linear(3, 3), (torch.randn(4),)
"""
POLICY = "process_pairs: 2\nquads_per_pair: 3\nsteps_per_block: 1\nvoid_quads_allowed: 0\ntime_budget_seconds: 240\n"


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRX_LEDGER", str(tmp_path / "ledger.sqlite3"))
    return tmp_path


def ledger(workplace: Path) -> Ledger:
    return open_ledger(parse_location(str(workplace / "ledger.sqlite3")))


@pytest.mark.integration
def test_the_baseline_does_not_win_against_itself(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["trial", "model.py:build", "--aa", "--inner", "eager", "--policy", "policy.yaml", "--format", "json"])
    captured = capsys.readouterr()
    assert code == 1, captured.err
    found = TrialDocument.model_validate_json(captured.out)
    assert found.verdict != "promote"
    assert [gate.name for gate in found.gates] == list(Gate)
    assert all(gate.passed is not False for gate in found.gates[:-1])
    assert len(found.signatures) == 1
    assert not (workplace / "ledger.sqlite3").exists()


@pytest.mark.integration
def test_trials_are_recorded(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["trial", "model.py:build", "--train", "--inner", "eager", "--policy", "policy.yaml"])
    captured = capsys.readouterr()
    if "nothing was tried" in captured.err:
        # What measured times speak for is the machine's to say.
        assert code == 0
        assert not (workplace / "ledger.sqlite3").exists()
        return
    events = ledger(workplace).read_events()
    kinds = [event.decision.kind.value for event in events]
    assert kinds[:2] == ["proposed", "tried"]
    assert code == (0 if kinds[2] == "promoted" else 1)
    assert verify(ledger(workplace)).problem is None
    assert "recorded in" in captured.out


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model.py:nothing"], "has no 'nothing'"),
        (["model.py:broken", "--aa"], "the baseline does not run"),
        (["model.py:build", "--inner", "inducter"], "did you mean 'inductor'"),
        (["model.py:build", "--inner", "cudagraphs"], "--inner cudagraphs takes no plan (take one of aot"),
        (["model.py:build", "--policy", "nowhere.yaml"], "cannot be read"),
        (["model.py:build", "--dtype", "f32"], "unknown --dtype 'f32' (did you mean float32?)"),
        (["model.py:build", "--device", "nope"], "unknown --device 'nope'"),
        (["model.py:build", "--aa", "--candidate", "hoist_copy"], "--aa tries the baseline against itself"),
        (["\x1b[31m\u202e.py:build", "--aa"], "no such file: [31m.py"),
    ],
)
def test_errors_give_a_hint(
    workplace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(["trial", *arguments]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert len(message.splitlines()) == 1
    assert message.rstrip("\n").isprintable()
    assert not (workplace / "ledger.sqlite3").exists()


@pytest.mark.integration
def test_an_error_has_one_hint(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trial", "model.py:nothing"]) == 2
    assert capsys.readouterr().err == "frx: the program does not run: model.py has no 'nothing' (check the name)\n"


def test_that_nothing_was_tried_is_a_document(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_trial, "try_target", lambda *_: None)
    assert run(["trial", "model.py:build", "--format", "json"]) == 0
    captured = capsys.readouterr()
    found = TrialDocument.model_validate_json(captured.out)
    assert (found.verdict, found.target, len(found.arms)) == ("inconclusive", "model.py:build", 1)
    assert "nothing was tried" in found.reason
    assert "nothing was tried" in captured.err
    assert run(["trial", "model.py:build"]) == 0
    assert capsys.readouterr().out == ""


def test_trial_that_ended_early_is_not_recorded(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (MadeGraph("1" * 16, (Candidate("hoist_copy", "a" * 16, ("clone",)),)),)
    verdict = Verdict(Outcome.INCONCLUSIVE, "the time budget ended", None, early=True)
    monkeypatch.setattr(target_trial, "try_target", lambda *_: TargetTrial(TrialRun((), verdict, (), None, ()), made))
    assert run(["trial", "model.py:build"]) == 1
    printed = capsys.readouterr().out
    assert "not recorded: the trial ended before" in printed
    assert "recorded in" not in printed
    assert not (workplace / "ledger.sqlite3").exists()


@pytest.mark.parametrize(("count", "code"), [(1, 0), (2, 1)])
def test_gain_of_several_graphs_is_not_promoted(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, count: int, code: int
) -> None:
    candidate = Candidate("hoist_copy", "a" * 16, ("clone",))
    made = tuple(MadeGraph(str(number) * 16, (candidate,)) for number in range(count))
    verdict = Verdict(Outcome.PROMOTE, "10 % faster", None, early=False)
    here = read_trial_environment(torch.device("cpu"))
    monkeypatch.setattr(target_trial, "try_target", lambda *_: TargetTrial(TrialRun((), verdict, (), here, ()), made))
    assert run(["trial", "model.py:build"]) == code
    printed = " ".join(capsys.readouterr().out.split())
    assert ("#2 tried, #4 tried. Nothing is decided: the verdict is that of several graphs" in printed) is (count > 1)
    assert ("#3 promoted" in printed) is (count == 1)
    assert len(ledger(workplace).read_events()) == (3 if count == 1 else 4)
