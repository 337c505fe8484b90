"""`frx fleet`, as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from written_runs import WrittenRun, waiting_run

from frx_graph.cli.main import run
from frx_graph.reports.runs.fleet_document import FleetDocument

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_fleet_v1.schema.json").read_text(encoding="utf-8")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    waiting_run(10).write(folder / "run-1")
    fine = WrittenRun()
    for _ in range(10):
        fine.step(100, wait=1, forward=90)
    fine.write(folder / "run-2")
    (folder / "broken.zip").write_text("PK")
    return folder


@pytest.mark.integration
def test_reports_and_codes(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb")
    assert run(["fleet", str(runs)]) == 1
    text = capsys.readouterr().out
    assert text.startswith("FLEET  ")
    for part in ("2 runs, 0 with", "2 analysed again", "input_bound", "none recorded", "NOT READ (1)"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80
    output = tmp_path / "fleet.json"
    assert run(["fleet", str(runs), "--json", "--output", str(output), "--quiet", "--workers", "1"]) == 1
    assert capsys.readouterr() == ("", "")
    document = json.loads(output.read_text())
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(document)
    assert FleetDocument.model_validate(document).runs.runs == 2
    assert run(["fleet", str(runs / "run-2"), "--parquet", str(tmp_path / "kept"), "--quiet"]) == 0
    assert (tmp_path / "kept" / "runs.parquet").is_file()


def test_errors_are_one_line(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fleet", str(tmp_path / "nowhere")]) == 2
    assert run(["fleet", str(runs), "--output", str(tmp_path / "no" / "file")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 2


def test_without_duckdb(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert run(["fleet", str(runs)]) == 2
    assert capsys.readouterr().err == (
        "frx: frx fleet needs DuckDB, which is not installed (pip install 'frx-graph[fleet]')\n"
    )


def test_it_starts_without_torch() -> None:
    program = "import sys, frx_graph.cli.fleet, frx_graph.fleet.reader_process; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
