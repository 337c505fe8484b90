"""`frx advise` as a person runs it: exit codes, formats, errors in one line, filters, baseline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ncu_exports import Launch, nvtx_export
from run_traces import RunTrace

from frx_graph.cli.main import run
from frx_graph.records import Refusal
from frx_graph.trials.arm_messages import TargetWorkload

_MODELS = """
import os
import torch
from torch import nn

class Churn(nn.Module):
    def forward(self, x):
        y = x.transpose(1, 2).contiguous()
        return y.transpose(1, 2).contiguous() + 1

class Scalar(nn.Module):
    def forward(self, x):
        return 3

class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("planted\\nwith a second line")

class Odd(BaseException):
    pass

class RaisesOdd(nn.Module):
    def forward(self, x):
        raise Odd("planted")

class Leaves(nn.Module):
    def forward(self, x):
        raise SystemExit(3)

class Shouts(nn.Module):
    def forward(self, x):
        os.system("echo from a child process")
        print("from Python")
        return x + 1

def shouts():
    os.system("echo from a child process")
    return Shouts(), (torch.randn(2),)

def odd():
    return RaisesOdd(), (torch.randn(2),)

def leaves():
    return Leaves(), (torch.randn(2),)

def on_meta():
    with torch.device("meta"):
        return nn.Linear(2, 2), (torch.randn(2, 2),)

def jagged():
    rows = [torch.randn(2, 4), torch.randn(3, 4)]
    return nn.Linear(4, 4), (torch.nested.nested_tensor(rows, layout=torch.jagged),)

@torch.library.custom_op("frx_cli_test::no_fake", mutates_args=())
def no_fake(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

def without_fake():
    return no_fake, (torch.randn(2),)

def churn():
    return Churn(), (torch.randn(4, 256, 256),)

def clean():
    return nn.Identity().eval() if False else Plain(), (torch.randn(2, 3),)

class Plain(nn.Module):
    def forward(self, x):
        return x + 1

def scalar():
    return Scalar(), (torch.randn(2),)

def raises():
    return Raises(), (torch.randn(2),)
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(_MODELS)
    return tmp_path


Frx = Callable[..., tuple[int, str, str]]


@pytest.fixture
def frx(models: Path, capfd: pytest.CaptureFixture[str]) -> Frx:
    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_findings_exit_1_and_name_rule_and_line(frx: Frx) -> None:
    code, out, _ = frx("advise", "models.py:churn")
    assert code == 1
    assert "FRX002" in out
    assert "models.py:8" in out
    assert "\x1b" not in out
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize("options", [(), ("--observe",)])
def test_output_of_the_model_and_its_children_is_not_in_the_report(frx: Frx, options: tuple[str, ...]) -> None:
    _, out, err = frx("advise", "models.py:shouts", "--format", "json", *options)
    json.loads(out)
    assert "from a child process" in err
    assert "from Python" in err


def test_a_clean_model_exits_0(frx: Frx) -> None:
    code, out, _ = frx("advise", "models.py:clean", "--ignore", "FRX005")
    assert code == 0, out


def test_exit_zero(frx: Frx) -> None:
    assert frx("advise", "models.py:churn", "--exit-zero")[0] == 0


def test_json_is_the_published_document(frx: Frx) -> None:
    code, out, _ = frx("advise", "models.py:churn", "--format", "json")
    document = json.loads(out)
    assert code == 1
    assert document["schema"] == "frx_advice_v1"
    assert document["totals"]["copies_per_step"] == 2
    assert document["totals"]["copy_bytes_per_step"] == 2 * 2 * 4 * 256 * 256 * 4
    assert {f["rule"] for f in document["findings"]} >= {"FRX002"}


def test_observed_copies_are_reported_beside_predicted_ones(frx: Frx) -> None:
    _, out, _ = frx("advise", "models.py:churn", "--observe", "--format", "json")
    document = json.loads(out)
    assert [c["bytes"] for c in document["observed"]] == [2 * 4 * 256 * 256 * 4] * 2


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        (("--observe", "--inner", "inductor"), True),
        (("--observe",), False),
        (("--inner", "inductor"), False),
    ],
)
def test_page_faults_are_counted_where_a_compiled_step_is_run(
    frx: Frx, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], counted: bool
) -> None:
    asked: list[tuple[str, str, bool]] = []

    def count(workload: TargetWorkload, _start: object, *, train: bool, inner: str, compare_times: bool) -> Refusal:
        asked.append((workload.target, inner, compare_times))
        return Refusal("page faults", "not counted: a test")

    monkeypatch.setattr("frx_graph.advisor.allocation_cost.measure_allocation_cost", count)
    monkeypatch.setattr("frx_graph.advisor.advisor.observe_step", lambda *_, **__: ())
    _, out, _ = frx("advise", "models.py:churn", "--no-measure", "--format", "json", *options)
    assert asked == ([("models.py:churn", "inductor", False)] if counted else [])
    reasons = [refusal["reason"] for refusal in json.loads(out)["refusals"]]
    assert ("not counted: a test" in reasons) is counted


def test_files_of_runs_are_led_back_and_what_is_left_is_named(frx: Frx, models: Path) -> None:
    trace = RunTrace()
    strided, dense = ((4, 256, 256), (65536, 1, 256)), ((4, 256, 256), (65536, 256, 1))
    trace.frame("models.py(7): forward", 0, 100, "main.py:3")
    for start, line in ((10, 8), (40, 9)):
        trace.frame("<built-in method contiguous>", start, start + 25, f"models.py:{line}")
        trace.op("aten::contiguous", start + 1, start + 24, strided)
        trace.op("aten::copy_", start + 2, start + 20, dense, strided)
    trace.write(models / "run.json")
    copy = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(int)>(int, T2)"
    (models / "report.csv").write_text(nvtx_export([(Launch(0, copy, grid="(512, 1, 1)"), "")]))
    _, out, _ = frx(
        "advise", "models.py:churn", "--evidence", "run.json", "--evidence", "report.csv", "--format", "json"
    )
    document = json.loads(out)
    copies = [finding for finding in document["findings"] if finding["rule"] == "FRX002"]
    assert {finding["site"]["line"] for finding in copies} == {8, 9}
    for finding in copies:
        assert finding["confidence"] == 0.99
        (fact,) = [fact for fact in finding["evidence"] if fact["measurements"]]
        assert (fact["source"].startswith("run.json, ts "), fact["basis"]) == (True, "observed")
    (left,) = [one for one in document["refusals"] if "report.csv" in one["subject"]]
    assert left["subject"] == "1× elementwise_kernel in report.csv, line 3"
    assert left["reason"].startswith("belongs to no finding: it may belong to any of FRX002 (models.py:8), FRX002 (mod")


def test_select_and_ignore(frx: Frx) -> None:
    assert frx("advise", "models.py:churn", "--select", "FRX012")[0] == 0
    code, out, _ = frx("advise", "models.py:churn", "--select", "FRX002", "--format", "json")
    assert code == 1
    assert {f["rule"] for f in json.loads(out)["findings"]} == {"FRX002"}


def test_a_comment_on_the_line_suppresses(frx: Frx, models: Path) -> None:
    source = _MODELS.replace("transpose(1, 2).contiguous()\n", "transpose(1, 2).contiguous()  # frx: ignore\n")
    source = source.replace(".contiguous() + 1", ".contiguous() + 1  # frx: ignore[FRX002]")
    (models / "quiet.py").write_text(source)
    code, _, _ = frx("advise", "quiet.py:churn", "--select", "FRX002")
    assert code == 0


def test_a_baseline_hides_what_it_holds(frx: Frx, models: Path) -> None:
    assert frx("advise", "models.py:churn", "--write-baseline", "known.json")[0] == 1
    assert frx("advise", "models.py:churn", "--baseline", "known.json")[0] == 0


def test_output_writes_the_file_and_keeps_standard_output_empty(frx: Frx, models: Path) -> None:
    code, out, err = frx("advise", "models.py:churn", "--format", "html", "--output", "report.html")
    assert (code, out) == (1, "")
    assert "report.html" in err
    assert (models / "report.html").read_text().startswith("<!doctype html>")


def test_configuration_is_read_from_pyproject(frx: Frx, models: Path) -> None:
    (models / "pyproject.toml").write_text('[tool.frx]\nselect = ["FRX012"]\n')
    assert frx("advise", "models.py:churn")[0] == 0
    (models / "pyproject.toml").write_text("[tool.frx]\nselekt = []\n")
    code, _, err = frx("advise", "models.py:churn")
    assert code == 2
    assert "did you mean 'select'" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("advise", "missing.py:build"), "no such file"),
        (("advise", "models.py:churm"), "did you mean 'churn'"),
        (("advise", "models.py:raises"), "the model raised ValueError: planted"),
        (("advise", "models.py:scalar"), "nothing of"),
        (("advise", "models.py:odd"), "the model raised Odd: planted"),
        (("advise", "models.py:leaves"), "the model ended the program with exit code 3"),
        (("advise", "models.py:on_meta"), "model.weight is on the meta device"),
        (("advise", "models.py:on_meta", "--observe"), "model.weight is on the meta device"),
        (("advise", "models.py:jagged"), "nested tensors"),
        (("advise", "models.py:without_fake"), "frx_cli_test::no_fake has no fake implementation"),
        (("advise", "models.py:churn", "--device", "meta"), "--device meta"),
        (("advise", "models.py:churn", "--select", "FRX999"), "no rule is called"),
        (("advise", "models.py:churn", "--nonsense"), "--nonsense"),
        (("advise", "models.py:churn", "--dtype", "float23"), "did you mean"),
        (("advise", "models.py:churn", "--device", "gpu"), "unknown --device"),
        (("advise", "models.py:churn", "--format", "pdf"), "pdf"),
        (("advise", "models.py:churn", "--output", "no/such/folder/x.html"), "no such folder"),
        (("advise", "models.py:churn", "--baseline", "missing.json"), "missing.json"),
        (("advise", "models.py:churn", "--evidence", "missing.json"), "missing.json: no such file"),
        (("advise", "models.py:churn", "--evidence", "models.py"), "models.py: neither its name nor its content"),
        (("advise", "models.py:churn", "--inner", "inducter"), "did you mean 'inductor'"),
        (("advise", "models.py:churn", "--top", "0"), "--top"),
        (("advise",), "target"),
        (("rules", "FRX099"), "FRX099"),
        (("nosuchcommand",), "nosuchcommand"),
    ],
)
def test_bad_input_exits_2_with_one_line(frx: Frx, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = frx(*arguments)
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in out + err
    assert "no findings" not in (out + err).lower()
