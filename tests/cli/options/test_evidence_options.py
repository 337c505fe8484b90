"""`frx analyze` and `frx explain` of runs, as they are typed."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from written_runs import WrittenRun, waiting_run

from frx_graph.cli.main import run

FILES = ["frx_evidence.json", "frx_llm_prompt.txt", "frx_summary.txt"]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return waiting_run().write(tmp_path / "run-1")


def zipped(folder: Path) -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.rglob("*"):
            if file.is_file():
                archive.write(file, file.relative_to(folder.parent))
    return path


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_analyze(bundle: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(bundle if kind == "folder" else zipped(bundle))
    assert run(["analyze", target]) == 1
    text = capsys.readouterr().out
    assert text.startswith("RUN  run-1\n")
    assert "Internal signal     : underutilized_gpu (symptom)" in text
    assert run(["analyze", target, "--json", "--scope", "run"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["mode"] == "run_bundle"
    assert document["result"]["schema"] == "frx_run_v1"
    assert document["result"]["steady_state"]["diagnosis"]["user_facing_bottleneck"] == "input_bound"


def test_codes(tmp_path: Path, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fine = WrittenRun()
    for _ in range(10):
        fine.step(100, wait=1, forward=90)
    assert run(["analyze", str(fine.write(tmp_path / "fine"))]) == 0
    assert run(["analyze", str(bundle), "--exit-zero"]) == 0
    (tmp_path / "little").mkdir()
    (tmp_path / "little" / "host_metrics.csv").write_text("timestamp\n")
    assert run(["analyze", str(tmp_path / "little")]) == 2
    assert "insufficient_telemetry" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["folder", "zip", "damaged", "missing"])
@pytest.mark.parametrize("command", ["analyze", "explain"])
def test_non_run_is_refused_in_one_line(
    tmp_path: Path, kind: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    target = tmp_path / "other"
    if kind in ("folder", "zip"):
        target.mkdir()
        (target / "readme.txt").write_text("nothing")
    if kind == "zip":
        target = zipped(target)
    elif kind == "damaged":
        target = tmp_path / "run.zip"
        target.write_bytes(b"PK\x03\x04" + b"\0" * 100)
    assert run([command, str(target)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert str(target) in err
    assert not list(Path().iterdir())


def test_explain(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "brief"
    assert run(["explain", str(bundle), "--out", str(out), "--scope", "steady_state"]) == 0
    assert sorted(path.name for path in out.iterdir()) == FILES
    evidence = json.loads((out / "frx_evidence.json").read_text())
    assert (evidence["schema"], evidence["layers_available"]) == ("frx_explain_v0", ["run"])
    assert evidence["primary_diagnosis"]["label"] == "input_bound"


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "{run}", "--model", "net"],
        ["analyze", "{run}", "--select", "FRX006"],
        ["analyze", "{run}", "--format", "sarif"],
        ["analyze", "{file}", "--scope", "run"],
        ["analyze", "--trace", "{file}", "--scope", "run"],
        ["analyze", "--before", "{file}", "--after", "{file}", "--scope", "run"],
        ["explain", "{run}", "--source", "{file}"],
        ["explain", "{file}", "--scope", "run"],
    ],
)
def test_options_that_do_not_go_together(
    bundle: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kernel.ptx").write_text(".version 8.0\n.target sm_80\n")
    places = {"{run}": str(bundle), "{file}": str(tmp_path / "kernel.ptx")}
    assert run([places.get(word, word) for word in words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
