"""`frx explain` as it is typed."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from ncu_exports import SOL, Launch, long_export, metric

from frx_graph.cli.main import run

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_explain_v0.schema.json").read_text(encoding="utf-8")
DATA = Path(__file__).parent.parent / "data"
FILES = ["frx_evidence.json", "frx_llm_prompt.txt", "frx_summary.txt"]


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("report.csv").write_text(
        long_export(
            metric(Launch(), SOL, "Duration", "us", "90.00"),
            metric(Launch(), SOL, "Compute (SM) Throughput", "%", "20.00"),
            metric(Launch(), SOL, "Memory Throughput", "%", "90.00"),
            metric(Launch(), SOL, "DRAM Throughput", "%", "90.00"),
        )
    )
    return "report.csv"


def names(folder: str = ".") -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def test_three_files_are_written(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("kernel.cu").write_text("__global__ void copy(float *x, int n) {}\n")
    assert run(["explain", export, "--source", "kernel.cu", "--out", "new/folder"]) == 0
    out, err = capsys.readouterr()
    assert out == Path("new/folder/frx_summary.txt").read_text()
    assert err == "frx: wrote frx_summary.txt, frx_llm_prompt.txt and frx_evidence.json to new/folder\n"
    assert names("new/folder") == FILES
    document = json.loads(Path("new/folder/frx_evidence.json").read_text())
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(document)
    assert document["source"]["lines"] == ["__global__ void copy(float *x, int n) {}"]
    assert "    1 | __global__ void copy" in Path("new/folder/frx_llm_prompt.txt").read_text()
    assert document["layers_available"] == ["source", "ncu"]
    assert Path("new/folder/frx_summary.txt").read_text().startswith("FRX SUMMARY  report.csv\n")


def test_the_current_folder_is_named(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", export]) == 0
    assert capsys.readouterr().err.endswith(" to the current folder\n")


def test_quiet_prints_nothing(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", export, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert names() == [*FILES, "report.csv"]


def test_ours_are_replaced(export: str) -> None:
    assert run(["explain", export]) == 0
    assert run(["explain", str(DATA / "ptx" / "kernels_sm80.ptx")]) == 0
    assert names() == [*FILES, "report.csv"]
    assert json.loads(Path("frx_evidence.json").read_text())["layers_available"] == ["ptx"]


@pytest.mark.parametrize("name", FILES)
def test_foreign_file_is_replaced_only_with_force(export: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(name).write_text("mine")
    assert run(["explain", export]) == 2
    assert f"{name} was not written by frx explain (move it, or let --force replace it)" in capsys.readouterr().err
    assert (Path(name).read_text(), names()) == ("mine", sorted([name, "report.csv"]))
    assert run(["explain", export, "--force"]) == 0
    assert Path(name).read_text() != "mine"


def test_none_is_written_where_one_cannot_be(
    export: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Path.replace

    def full(path: Path, target: Path) -> Path:
        if "evidence" in path.name:
            raise OSError(28, "No space left on device")
        return done(path, target)

    monkeypatch.setattr(Path, "replace", full)
    assert run(["explain", export]) == 2
    assert "cannot write into .: No space left on device" in capsys.readouterr().err
    assert names() == ["report.csv"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.csv"], "none.csv: no such file"),
        (["."], ".: holds nothing to analyse: no events"),
        (["report.csv", "--out", "report.csv"], "report.csv is not a folder"),
        (["report.csv", "--source", "none.cu"], "none.cu: no such file"),
        (["report.csv", "--source", "."], ".: is a directory, expected CUDA source"),
        (
            [str(DATA / "traces" / "hta_mi250_minitoy_train.json.gz")],
            "does not describe kernels (frx analyze",
        ),
        (
            [str(DATA / "cuda" / "uncoalesced_access_bad.cu")],
            "is source, which needs a report (frx explain report.csv --source",
        ),
        ([], "report"),
    ],
)
def test_errors_leave_nothing(export: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert run(["explain", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert names() == ["report.csv"]


def test_non_cuda_source_is_quoted(export: str) -> None:
    Path("kernel.py").write_text("@triton.jit\ndef copy(x): ...\n")
    assert run(["explain", export, "--source", "kernel.py"]) == 0
    document = json.loads(Path("frx_evidence.json").read_text())
    assert document["layers_available"] == ["ncu"]
    assert document["source"]["lines"][0] == "@triton.jit"
    assert document["missing_data"][-1]["layer"] == "source"


def test_source_beside_ptx(export: str) -> None:
    kernels = DATA / "ptx" / "kernels"
    assert run(["explain", f"{kernels}_sm80.ptx", "--source", f"{kernels}.cu"]) == 0
    document = json.loads(Path("frx_evidence.json").read_text())
    assert document["layers_available"] == ["source", "ptx"]
    known = {one["kernel_name"] for one in document["top_kernels"]}
    told = [one for one in document["static_findings"] if one["layer"] == "source"]
    assert {name for one in told for name in one["measured_as"]} & known
