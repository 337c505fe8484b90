"""The judgement of what `frx fleet` takes, and that the benchmark works."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fleet import Cost, Written, broken_bounds, main, wrong_totals
from written_runs import waiting_run

COST = Cost(10_000, 59.9, 167.0, 100.0, 999_999_999, 2_000_000_000, 3)
WRITTEN = Written(readable=9, twice=1, without_summary=0, damaged=1, with_trace=4, bytes=5)
DOCUMENT = {
    "bundles": {"read": 9, "twice": 1, "analysed_anew": 0, "problems": 1},
    "runs": {"runs": 8, "with_trace": 4},
}


def test_bounds() -> None:
    assert broken_bounds(COST) == []
    assert broken_bounds(replace(COST, seconds=60.0)) == ["60.0 s for 10,000 bundles (bound 60)"]
    assert broken_bounds(replace(COST, peak_pss_bytes=1_000_000_000)) == ["1,000 MB (bound 1,000)"]
    assert broken_bounds(replace(COST, seconds=100.0, bundles=20_000)) == []


def test_totals_that_are_not_those_that_were_written() -> None:
    assert wrong_totals(WRITTEN, DOCUMENT) == []
    assert wrong_totals(replace(WRITTEN, with_trace=3), DOCUMENT) == ["with trace: 4, not 3"]


@pytest.mark.integration
def test_a_few_bundles(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.setattr("fleet.NO_SUMMARY", 4)
    monkeypatch.setattr("fleet.DAMAGED", 7)
    recorded = waiting_run(5).write(tmp_path / "recorded")
    assert main(["--bundles", "12", "--recorded", str(recorded), "--json", str(tmp_path / "out.json")]) == 0
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["broken"] == []
    assert (figures["written"]["damaged"], figures["written"]["twice"], figures["written"]["without_summary"]) == (
        1,
        1,
        2,
    )
    assert figures["cost"]["peak_pss_bytes"] > 0
    assert "duckdb" in figures["machine"]["versions"]
    assert "a second" in capsys.readouterr().out
