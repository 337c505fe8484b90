"""`frx compare` and `frx analyze --before --after` for two runs, traces and advice files."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from written_runs import WrittenRun, waiting_run

from frx_graph.cli.main import run

TRACES = Path(__file__).parents[1] / "data" / "traces"
RESNET, ALEXNET = TRACES / "kineto_resnet50_two_steps.pt.trace.json.gz", TRACES / "hta_alexnet_one_forward.json.gz"
MI250 = TRACES / "hta_mi250_minitoy_train.json.gz"
ADVICE = Path(__file__).parents[1] / "data" / "documents" / "frx_advice_v1.json"
PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_run_change_v1.schema.json").read_text(encoding="utf-8")


def result(capsys: pytest.CaptureFixture[str]) -> Any:
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(document)
    assert document["mode"] == "run_change"
    return document["result"]


def fast_run() -> WrittenRun:
    run = WrittenRun()
    for _ in range(30):
        run.step(40, wait=1, forward=20)
        run.sample(90)
    return run


def test_a_run_that_no_longer_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = waiting_run().write(tmp_path / "before"), fast_run().write(tmp_path / "after")
    assert run(["compare", str(before), str(after), "--json"]) in (0, 1)
    found = result(capsys)
    assert found["kind"] == "run"
    assert found["steps"]["verdict"] == "faster"
    assert found["steps"]["change"] == pytest.approx(-0.6, abs=0.02)
    assert run(["compare", str(after), str(before)]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "RUNS COMPARED" in text
    assert "longer" in text
    assert "new: input_bound" in text


def test_a_trace_equals_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "--before", str(RESNET), "--after", str(RESNET), "--json"]) == 0
    found = result(capsys)
    assert found["kernels"] == found["shares"] == found["labels_new"] == found["labels_resolved"] == []
    assert found["findings_kept"] >= 1


def test_kernels_that_appeared_and_went(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", str(RESNET), str(ALEXNET)]) in (0, 1)
    text = capsys.readouterr().out
    # One of them marks no steps.
    assert "KERNELS" not in text
    assert "marked on one side only" in text
    assert run(["compare", str(RESNET), str(MI250)]) in (0, 1)
    text = capsys.readouterr().out
    assert "KERNELS, PER STEP" in text
    assert "gone:" in text
    assert "device:" in text
    assert max(map(len, text.splitlines())) <= 80


def test_findings_of_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    advice = json.loads(ADVICE.read_text())
    assert advice["findings"]
    fixed = tmp_path / "fixed.json"
    totals = advice["totals"] | {"copies_per_step": 0, "copy_bytes_per_step": 0, "bandwidth_overhead_pct": 0.0}
    fixed.write_text(json.dumps(advice | {"findings": [], "totals": totals}))
    assert run(["compare", str(ADVICE), str(fixed), "--json"]) == 0
    assert len(result(capsys)["findings_resolved"]) == len(advice["findings"])
    assert run(["compare", str(fixed), str(ADVICE)]) == 1
    assert "NEW FINDINGS" in capsys.readouterr().out


def test_cheaper_advice_is_not_worse_for_a_new_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    advice = json.loads(ADVICE.read_text())
    new = advice["findings"][-1] | {"rule": "FRX005", "bytes_per_step": 1000}
    totals = advice["totals"] | {"copy_bytes_per_step": 1000, "bandwidth_overhead_pct": 0.001}
    cheaper = tmp_path / "cheaper.json"
    cheaper.write_text(json.dumps(advice | {"findings": [new], "totals": totals}))
    assert run(["compare", str(ADVICE), str(cheaper)]) == 0
    assert "the second is better" in (text := " ".join(capsys.readouterr().out.split()))
    assert "new: 1 finding (FRX005, 1.00 kB a step)" in text
    assert run(["compare", str(cheaper), str(ADVICE)]) == 1


def test_a_selection_of_rules_is_neither_better_nor_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    advice = json.loads(ADVICE.read_text())
    selected = tmp_path / "selected.json"
    selected.write_text(json.dumps(advice | {"findings": advice["findings"][:1]}))
    for pair in ((ADVICE, selected), (selected, ADVICE)):
        assert run(["compare", *map(str, pair)]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "neither is worse: its layout copies move as much as before" in text
        assert "only one side has findings of FRX002, FRX007, FRX010" in text
        assert "traffic that the findings waste: 12.8 MB -> 12.8 MB" in text


def test_a_program_of_another_name_has_the_same_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    renamed = tmp_path / "renamed.json"
    renamed.write_text(ADVICE.read_text().replace("models/resnet.py", "models/resnet_new.py"))
    assert run(["compare", str(ADVICE), str(renamed)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "0 findings resolved, 0 new, 4 as before" in text
    assert "program: models/resnet.py:make, then models/resnet_new.py:make" in text


def test_undecided_step_times_are_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = WrittenRun()
    for _ in range(3):
        few.step(40, wait=1, forward=20)
    folder = few.write(tmp_path / "few")
    assert run(["compare", str(folder), str(folder)]) == 0
    assert "too few steps to tell" in capsys.readouterr().out


def test_two_kinds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = waiting_run().write(tmp_path / "run")
    assert run(["compare", str(folder), str(RESNET)]) == 2
    message = capsys.readouterr().err
    assert "is a run, and" in message
    assert "compare two of a kind" in message
    kernel = tmp_path / "k.cu"
    kernel.write_text("__global__ void k(float* a) { a[threadIdx.x] = 0; }")
    assert run(["compare", str(kernel), str(RESNET)]) == 2
    assert "about kernels" in capsys.readouterr().err


def test_damaged_records_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    good = waiting_run().write(tmp_path / "run")
    assert run(["compare", str(empty), str(good)]) == 2
    copy = tmp_path / "advice.json"
    shutil.copy(ADVICE, copy)
    copy.write_text(copy.read_text()[:-200])
    assert run(["compare", str(copy), str(ADVICE)]) == 2
    assert capsys.readouterr().err.count("\n") == 2
