from __future__ import annotations

import json
from pathlib import Path

import pytest
from ncu_exports import RAW, Launch, long_export, metric

from frx_graph.cli.main import run

DATA = Path(__file__).parent.parent / "data"
BAD = str(DATA / "cuda" / "uncoalesced_access_bad.cu")
GOOD = str(DATA / "cuda" / "uncoalesced_access_good.cu")
TRACE = str(DATA / "traces" / "kineto_resnet50_two_steps.pt.trace.json.gz")
PTX = str(DATA / "ptx" / "kernels_sm80.ptx")


@pytest.fixture
def export(tmp_path: Path) -> str:
    path = tmp_path / "report.csv"
    counter = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio"
    path.write_text(long_export(metric(Launch(kernel="transpose"), RAW, counter, "sector", "32.0")))
    return str(path)


def test_diagnoses_exit_with_1_and_none_with_0(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reconcile", BAD, export]) == 1
    assert "[CONFIRMED]" in capsys.readouterr().out
    assert run(["reconcile", GOOD]) == 0
    assert "None that these layers show" in capsys.readouterr().out


def test_json(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reconcile", export, BAD, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["mode"], document["result"]["schema"]) == ("reconciliation", "frx_reconcile_v1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([BAD, GOOD], "both cuda_source"),
        (["none.cu"], "no such file"),
        ([PTX, "--gpu-model", "nothing"], "nothing"),
        ([], "Missing argument"),
    ],
)
def test_errors_exit_with_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reconcile", *arguments]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


def test_the_gpu_that_is_named_judges_ptx(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reconcile", PTX, "--gpu-model", "H100"]) in (0, 1)
    assert "DIAGNOSES" in capsys.readouterr().out
