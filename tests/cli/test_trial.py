"""`frx trial` as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.cli.main import run
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.opening import open_ledger
from frx_graph.ledger.store import Ledger
from frx_graph.ledger.verification import verify
from frx_graph.reports.trial_document import TrialDocument
from frx_graph.trials.gates import Gate

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


def test_the_baseline_does_not_win_against_itself(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["trial", "model.py:build", "--aa", "--inner", "eager", "--policy", "policy.yaml", "--format", "json"])
    found = TrialDocument.model_validate_json(capsys.readouterr().out)
    assert code == 1
    assert found.verdict != "promote"
    assert [gate.name for gate in found.gates] == list(Gate)
    assert all(gate.passed is not False for gate in found.gates[:-1])
    assert len(found.signatures) == 1
    assert not (workplace / "ledger.sqlite3").exists()


def test_what_is_tried_is_recorded(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["trial", "model.py:build", "--train", "--inner", "eager", "--policy", "policy.yaml"])
    captured = capsys.readouterr()
    if "nothing was tried" in captured.err:
        # What measured times speak for is the machine's to say.
        assert code == 0
        assert not (workplace / "ledger.sqlite3").exists()
        return
    events = ledger(workplace).events()
    kinds = [event.decision.kind.value for event in events]
    assert kinds[:2] == ["proposed", "tried"]
    assert code == (0 if kinds[2] == "promoted" else 1)
    assert verify(ledger(workplace)).problem is None
    assert "recorded in" in captured.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["model.py:nothing"], "has no 'nothing'"),
        (["model.py:broken", "--aa"], "the baseline does not run"),
        (["model.py:build", "--inner", "inducter"], "did you mean 'inductor'"),
        (["model.py:build", "--policy", "nowhere.yaml"], "cannot be read"),
    ],
)
def test_errors_say_what_to_do(
    workplace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(["trial", *arguments]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert len(message.splitlines()) == 1
    assert not (workplace / "ledger.sqlite3").exists()
