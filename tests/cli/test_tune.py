from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import psutil
import pytest
import yaml

from frx_graph.cli.main import run
from frx_graph.cli.tune import _parse_variables

TINY = str(Path(__file__).parent.parent / "runs" / "tune" / "tiny_workload.py")
SCHEMA = Path(__file__).parents[2] / "frx_graph" / "reports" / "frx_tune_v1.schema.json"
QUICK = ["--ignore-load", "--warmup-steps", "1", "--measure-steps", "6", "--family", "custom"]
FAST = ["--candidate", "TINY_FAST=1"]


def tune(out: Path, *flags: str, command: tuple[str, ...] = (sys.executable, "-S", TINY)) -> int:
    return run(["tune", "--out", str(out), *QUICK, *flags, "--", *command])


def report_of(out: Path) -> dict:
    (folder,) = out.iterdir()
    return json.loads((folder / "autopilot_report.json").read_text())


@pytest.mark.integration
def test_faster_configuration_is_found_proved_and_recommended(tmp_path, capsys, processes_of):
    command = (sys.executable, "-S", TINY, "--api-key", "k1")
    code = tune(tmp_path, *FAST, "--candidate", "TINY_OTHER=1", "--json", command=command)
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document == report_of(tmp_path)
    assert document["status"] == "complete"
    assert document["winner"]["environment"] == {"TINY_FAST": "1"}
    # Its steps sleep for half as long, beside what a step costs anyway.
    assert 0.4 < document["winner"]["speedup"] <= 1.1
    assert document["applied"] is False
    assert code == 0
    fates = {t["configuration"]["label"]: t["fate"] for t in document["trials"] if t["kind"] == "full"}
    assert fates["custom:TINY_FAST=1"] == "promote"
    assert fates["custom:TINY_OTHER=1"] != "promote"
    assert "Running baseline..." in printed.err
    (folder,) = tmp_path.iterdir()
    for trial in ("baseline", "custom-TINY_FAST1", "final"):
        for name in ("config.yaml", "benchmark_window.json", "metrics.json", "stdout.log", "stderr.log"):
            assert (folder / trial / name).is_file()
        assert (folder / trial / "raw" / "trace.jsonl").is_file()
        assert (folder / trial / "stdout.log").read_text() == "hello\n"
    assert yaml.safe_load((folder / "final" / "config.yaml").read_text())["environment"] == {"TINY_FAST": "1"}
    window = json.loads((folder / "baseline" / "benchmark_window.json").read_text())
    assert window == {"warmup_steps": 1, "measurement_steps": 6, "repeat_count": 1, "timeout_s": 60.0}
    assert "TINY_FAST=1" in (folder / "report.md").read_text()
    # Only what a tune goes on by has it.
    told = [path.name for path in folder.rglob("*") if path.is_file() and "k1" in path.read_text(errors="replace")]
    assert told == ["settings.json"]
    assert processes_of(tmp_path) == []


@pytest.mark.integration
def test_a_tune_goes_on_where_it_was_and_only_under_the_same_arguments(tmp_path, capsys):
    assert tune(tmp_path, *FAST, "--quiet") == 0
    (folder,) = tmp_path.iterdir()
    before = (folder / "custom-TINY_FAST1" / "metrics.json").stat().st_mtime_ns
    (folder / "final" / "metrics.json").unlink()
    capsys.readouterr()
    assert tune(tmp_path, *FAST, "--quiet", "--resume", str(folder)) == 0
    assert capsys.readouterr() == ("", "")
    assert report_of(tmp_path)["winner"]["environment"] == {"TINY_FAST": "1"}
    assert (folder / "custom-TINY_FAST1" / "metrics.json").stat().st_mtime_ns == before
    assert (folder / "final" / "metrics.json").is_file()
    assert tune(tmp_path, *FAST, "--resume", str(folder), "--max-trials", "3") == 2
    assert "max_trials was 12 and is 3" in capsys.readouterr().err


def test_a_faster_program_that_computes_worse_is_rejected(tmp_path, capsys):
    assert tune(tmp_path, "--candidate", "TINY_FAST=1,TINY_LOSS=1.2") == 1
    assert "final loss 1.2 exceeds baseline 1 by more than 5 %" in capsys.readouterr().err
    assert tune(tmp_path / "b", "--candidate", "TINY_FAST=1,TINY_LOSS=NaN") == 1
    assert "a loss is not finite" in capsys.readouterr().err


@pytest.mark.integration
def test_a_program_that_makes_smaller_steps_is_not_faster(tmp_path, capsys):
    assert tune(tmp_path, "--candidate", "TINY_FAST=1,TINY_SIZE=4", "--json") == 1
    (trial,) = json.loads(capsys.readouterr().out)["trials"]
    assert trial["by_sample"]
    assert trial["gain"]["ratio"] < 1.05


@pytest.mark.integration
def test_a_trial_of_other_variables_is_made_again(tmp_path, capsys):
    assert tune(tmp_path, *FAST) == 0
    (folder,) = tmp_path.iterdir()
    kept = folder / "final" / "metrics.json"
    metrics = json.loads(kept.read_text())
    metrics["trial"]["configuration"]["variables"] = [["TINY_FAST", "1"], ["TINY_OTHER", "1"]]
    metrics["trial"]["gain"]["ratio"] = 9.0
    kept.write_text(json.dumps(metrics))
    capsys.readouterr()
    assert tune(tmp_path, *FAST, "--resume", str(folder), "--json") == 0
    winner = json.loads(capsys.readouterr().out)["winner"]
    assert winner["environment"] == {"TINY_FAST": "1"}
    assert winner["speedup"] < 2


def test_a_candidate_that_fails_is_rejected_and_a_program_that_fails_is_an_error(tmp_path, capsys):
    assert tune(tmp_path / "a", "--candidate", "TINY_EXIT=3") == 1
    assert "it ends with exit code 3" in capsys.readouterr().err
    assert tune(tmp_path / "b", *FAST, command=(sys.executable, "-c", "raise SystemExit(5)")) == 2
    assert "exit code 5" in capsys.readouterr().err
    assert report_of(tmp_path / "b")["status"] == "failed"
    assert tune(tmp_path / "c", *FAST, command=(sys.executable, "-c", "pass")) == 2
    assert "reported 0 steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("A=1", [("A", "1")]),
        ("A=1,B=x=y,C=", [("A", "1"), ("B", "x=y"), ("C", "")]),
        ("CUDA_VISIBLE_DEVICES=0,1,OMP_NUM_THREADS=2", [("CUDA_VISIBLE_DEVICES", "0,1"), ("OMP_NUM_THREADS", "2")]),
    ],
)
def test_a_value_may_have_commas(text, variables):
    assert _parse_variables(text) == tuple(variables)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--min-speedup", "0"], "--min-speedup"),
        (["--time-budget-s", "nan"], "--time-budget-s"),
        (["--candidate", "no equals sign"], "sets no variable"),
        (["--family", "nonesuch"], "no family nonesuch"),
        (["--family", ""], "no family"),
        (["--bottleneck", "input-bound"], "no family helps against input-bound"),
        (["--resume", "/nonexistent"], "name the folder of a tune"),
    ],
)
def test_wrong_flags_are_one_line(tmp_path, capsys, flags, said):
    assert tune(tmp_path, *flags) == 2
    assert said in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_it_leaves_no_process_and_a_report_of_what_is_known(tmp_path, number):
    arguments = ["tune", "--out", str(tmp_path), *QUICK, *FAST, "--", sys.executable, "-S", TINY]
    environment = {**os.environ, "TINY_CHILD": "1", "TINY_MS": "20"}
    process = subprocess.Popen(
        [sys.executable, "-m", "frx_graph", *arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        env=environment, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "full:" in line:
            break
    deadline = time.monotonic() + 20
    while not any(tmp_path.glob("*/custom-*/processes/00-candidate/raw/trace.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    process.send_signal(number)
    said = process.stderr.read()
    code = process.wait(timeout=30)
    process.stderr.close()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    assert code == {signal.SIGINT: 130, signal.SIGTERM: -15, signal.SIGKILL: -9}[number]
    report = report_of(tmp_path)
    assert report["status"] == ("running" if number == signal.SIGKILL else "interrupted")
    assert report["baseline"]["steps"] > 0
    assert ("Report saved" in said) is (number != signal.SIGKILL)
