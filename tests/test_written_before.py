"""Files that an earlier version wrote are read by this one: a ledger, a bundle, an advice file, a baseline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from frx_graph.cli.main import run
from frx_graph.reports.advice.advice_file import read_advice
from frx_graph.reports.advice.baseline import filter_new, read_baseline

NET_FOLDER = "/tmp/before"
"""The folder in which the baseline was written; its paths are relative to that."""
WRITTEN = Path(__file__).parent / "data" / "written_before"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return Path(shutil.copy(WRITTEN / "ledger.sqlite3", tmp_path))


def test_a_ledger_is_sound_and_exports_the_same_lines(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ledger", "verify", "--ledger", str(ledger)]) == 0
    capsys.readouterr()
    assert run(["ledger", "export", "--ledger", str(ledger)]) == 0
    assert capsys.readouterr().out == (WRITTEN / "ledger.jsonl").read_text()


def test_a_decision_is_shown(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ledger", "show", "3", "--ledger", str(ledger)]) == 0
    assert "inconclusive" in capsys.readouterr().out


def test_a_bundle_is_analysed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = shutil.copy(WRITTEN / "run.zip", tmp_path)
    # It is analysed again, since its summary lacks the samples of the host. A quarter of its steps is unmarked.
    assert run(["analyze", str(bundle), "--json", "--exit-zero"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["result"]["schema"] == "frx_run_v1"
    assert document["result"]["step_count"] == 6


def test_advice_is_read() -> None:
    written = json.loads((WRITTEN / "advice.json").read_text())
    advice = read_advice(WRITTEN / "advice.json")
    assert [finding.rule for finding in advice.findings] == [finding["rule"] for finding in written["findings"]]
    assert written["findings"]


def test_a_baseline_hides_what_it_holds() -> None:
    advice = read_advice(WRITTEN / "advice.json")
    new = filter_new(advice, read_baseline(WRITTEN / "baseline.json"), Path(NET_FOLDER))
    assert advice.findings
    assert new.findings == ()
