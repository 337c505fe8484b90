"""`frx compare`, and `frx analyze` of two sides, as they are typed: on real sources, compiled by the real nvcc."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cuda_programs import HOST, NO_MAIN, needs_nvcc, source
from ncu_exports import SOL, Launch, long_export, metric

from frx_graph.cli import compare as module
from frx_graph.cli.main import run
from frx_graph.cli.options import evidence_options

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_compare_v1.schema.json").read_text(encoding="utf-8")
FAKE_NCU = Path(__file__).parent / "fake_ncu.py"
DATA = Path(__file__).parent.parent / "data"
ZOO, PTX = DATA / "cuda", DATA / "ptx" / "kernels_sm80.ptx"
RULES = sorted(path.stem.removesuffix("_bad") for path in ZOO.glob("*_bad.cu"))


def zoo(rule: str) -> tuple[str, str]:
    return str(ZOO / f"{rule}_bad.cu"), str(ZOO / f"{rule}_good.cu")


def result(capsys: pytest.CaptureFixture[str]) -> Any:
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(document)
    assert document["mode"] == "comparison"
    return document["result"]


def export(path: Path, us: float, dram: float, kernel: str = "void scale(float *)") -> str:
    launch = Launch(kernel=kernel)
    path.write_text(
        long_export(
            metric(launch, SOL, "Duration", "us", f"{us:.2f}"),
            metric(launch, SOL, "Compute (SM) Throughput", "%", "20.00"),
            metric(launch, SOL, "Memory Throughput", "%", f"{dram:.2f}"),
            metric(launch, SOL, "DRAM Throughput", "%", f"{dram:.2f}"),
        )
    )
    return str(path)


@pytest.mark.parametrize("rule", RULES)
def test_defect_fixed_in_the_source_is_resolved(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = zoo(rule)
    assert run(["compare", bad, good, "--json"]) == 0
    found = result(capsys)
    assert rule in {one["code"] for one in found["resolved"]}
    assert found["regressions"] == []
    assert found["verdict"]["overall_winner"] in ("b", "tie")
    assert run(["compare", good, bad, "--json"]) == 1
    back = result(capsys)
    assert rule in {one["code"] for one in back["regressions"]}
    assert back["verdict"]["overall_winner"] in ("a", "tie")


@needs_nvcc
@pytest.mark.parametrize("rule", ["uncoalesced_access", "fp32_only_matmul", "high_register_pressure"])
def test_real_ptx_of_both(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *zoo(rule), "--with-ptx", "--gpu-model", "sm_80", "--json"]) == 0
    found = result(capsys)
    assert found["data_availability"]["compared"] == ["source", "ptx"]
    assert (found["ptx_diff"]["target_a"], found["ptx_diff"]["target_b"]) == ("sm_80", "sm_80")
    (kernel,) = found["ptx_diff"]["kernels"]
    assert kernel["assembled"]
    assert found["scorecard"]["register_efficiency"]["available"]
    assert run(["compare", zoo(rule)[0], zoo(rule)[0], "--with-ptx", "--json"]) == 0
    same = result(capsys)
    assert same["verdict"]["overall_winner"] == "tie"
    assert (same["resolved"], same["regressions"], same["tradeoffs"]) == ([], [], [])


@needs_nvcc
def test_build_flags_and_what_does_not_compile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = str(source(tmp_path / "a.cu", "__global__ void f(float* a) { a[threadIdx.x] = VALUE; }"))
    assert run(["compare", a, a, "--with-ptx"]) == 2
    err = capsys.readouterr().err
    assert "a.cu is not compiled to PTX" in err
    assert 'identifier "VALUE" is undefined' in err
    assert run(["compare", a, a, "--with-ptx", "--build-flags", "-DVALUE=1 -arch=sm_90"]) == 0
    assert "WINNER  TIE" in capsys.readouterr().out


def test_exports_that_are_there_already(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = export(tmp_path / "slow.csv", 100, 40), export(tmp_path / "fast.csv", 45, 92)
    sources = zoo("uncoalesced_access")
    assert run(["compare", *sources, "--ncu-a", slow, "--ncu-b", fast, "--json"]) == 0
    found = result(capsys)
    assert (found["verdict"]["overall_winner"], found["verdict"]["basis"]) == ("b", "time")
    assert run(["compare", *sources, "--ncu-a", fast, "--ncu-b", slow]) == 1
    assert capsys.readouterr().out.startswith("WINNER  A")
    assert run(["compare", *sources, "--ncu-a", fast]) == 0
    said = capsys.readouterr().out
    assert "Nsight Compute's counters of A alone" in said
    assert f"--ncu-a {fast} --ncu-b b.csv" in said


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A stand-in for ncu, and a GPU."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ncu").write_text(f"#!{sys.executable} -I\n{FAKE_NCU.read_text()}")
    (folder / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(module, "list_gpu_names", lambda: ("Made up",))

    def say(*kernels: str, wrong: str = "") -> None:
        monkeypatch.setenv("FAKE_NCU", json.dumps({"launches": kernels, "wrong": wrong, "dram": 90}))

    say("stream")
    return say


@pytest.mark.integration
@needs_nvcc
def test_both_are_compiled_and_measured(
    profiler: Callable[..., None],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine without a GPU `-arch=native` is what nvcc takes unasked."""
    path = source(tmp_path / "a.cu", NO_MAIN + HOST)
    assert run(["compare", str(path), str(path), "--with-ncu", "--json"]) == 0
    out, err = capfd.readouterr()
    assert err.count("sum 3.0") == 2
    found = json.loads(out)["result"]
    assert found["data_availability"]["compared"] == ["source", "ncu"]
    assert (found["verdict"]["overall_winner"], found["verdict"]["basis"]) == ("tie", "time")
    profiler(wrong="permission")
    assert run(["compare", str(path), str(path), "--with-ncu"]) == 2
    assert "ERR_NVGPUCTRPERM" in capfd.readouterr().err
    profiler("stream")
    assert run(["compare", str(path), str(source(tmp_path / "b.cu", NO_MAIN)), "--with-ncu"]) == 2
    assert "sum 3.0" not in capfd.readouterr().err, "A was run although B cannot be"


@needs_nvcc
@pytest.mark.usefixtures("profiler")
def test_source_without_main_cannot_be_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(source(tmp_path / "a.cu", NO_MAIN))
    assert run(["compare", path, path, "--with-ncu"]) == 2
    err = capsys.readouterr().err
    assert "a.cu has no main, and cannot be run" in err
    assert "--ncu-a" in err


def test_error_without_ncu_or_a_gpu_gives_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = zoo("uncoalesced_access")
    monkeypatch.setattr(evidence_options, "find_ncu", lambda: None)
    assert run(["compare", *sources, "--with-ncu"]) == 2
    assert "ncu was not found on the PATH" in capsys.readouterr().err
    monkeypatch.setattr(evidence_options, "find_ncu", lambda: "ncu")
    monkeypatch.setattr(module, "list_gpu_names", lambda: ())
    assert run(["compare", *sources, "--with-ncu"]) == 2
    assert "ncu needs an NVIDIA GPU" in (err := capsys.readouterr().err)
    assert "--ncu-a a.csv --ncu-b b.csv" in err
    monkeypatch.setattr(evidence_options, "find_nvcc", lambda: None)
    assert run(["compare", *sources, "--with-ptx"]) == 2
    assert "nvcc was not found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((str(PTX), str(PTX)), "is not CUDA source but ptx (frx analyze --before"),
        (("none.cu", "none.cu"), "none.cu: no such file"),
        ((*zoo("warp_divergence"), "--with-ncu", "--ncu-a", "x.csv"), "take one of both"),
        ((*zoo("warp_divergence"), "--build-flags", "-O3"), "--build-flags needs something to compile"),
        ((*zoo("warp_divergence"), "--with-ptx", "--build-flags", "'"), "quote them as in a shell"),
        ((*zoo("warp_divergence"), "--ncu-b", str(PTX)), "was not written by Nsight Compute"),
        ((*zoo("warp_divergence"), "--gpu-model", "H1000"), "no GPU is known by the name 'H1000'"),
    ],
)
def test_errors_take_one_line(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_two_exports_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = export(tmp_path / "slow.csv", 100, 40), export(tmp_path / "fast.csv", 45, 92)
    assert run(["analyze", "--before", slow, "--after", fast]) == 0
    said = capsys.readouterr().out
    assert said.startswith("WINNER  B")
    assert "DRAM throughput 40.0 % -> 92.0 %" in said
    assert "--before-ptx before.ptx --after-ptx after.ptx" in said
    assert run(["analyze", "--before", fast, "--after", slow, "--after-label", "mine", "--json"]) == 1
    found = result(capsys)
    assert (found["label_a"], found["label_b"]) == (fast, "mine")
    assert run(["analyze", "--before", fast, "--after", slow, "--exit-zero"]) == 0
    output = tmp_path / "out.txt"
    assert run(["analyze", "--before", slow, "--after", fast, "--output", str(output)]) == 0
    assert output.read_text() == said


def test_old_names_of_the_options_still_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = export(tmp_path / "slow.csv", 100, 40), export(tmp_path / "fast.csv", 45, 92)
    assert run(["analyze", "--before", slow, "--after", fast]) == 0
    said = capsys.readouterr().out
    assert run(["analyze", "--baseline", slow, "--optimized", fast]) == 0
    out, err = capsys.readouterr()
    assert out == said
    assert err == "frx: --baseline is deprecated: --before\nfrx: --optimized is deprecated: --after\n"
    assert run(["analyze", "--baseline", slow, "--before", slow, "--after", fast]) == 2


def test_all_layers_of_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = zoo("uncoalesced_access")
    slow, fast = export(tmp_path / "slow.csv", 100, 40), export(tmp_path / "fast.csv", 45, 92)
    before = ["--before-source", bad, "--before-ptx", str(PTX), "--before-ncu", slow]
    after = ["--after-source", good, "--after-ptx", str(PTX), "--after-ncu", fast]
    assert run(["analyze", *before, *after, "--json"]) == 0
    assert result(capsys)["data_availability"]["compared"] == ["source", "ptx", "ncu"]
    assert run(["analyze", *before, "--after", good, "--json"]) == 0
    found = result(capsys)
    assert found["data_availability"]["compared"] == ["source"]
    assert any("PTX of A alone" in said for said in found["still_unknown"])


def test_files_of_different_kinds_have_no_winner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = export(tmp_path / "slow.csv", 100, 40)
    assert run(["analyze", "--before", slow, "--after", str(PTX)]) == 2
    said = capsys.readouterr().out
    assert said.startswith("WINNER  UNKNOWN")
    assert "PTX of B alone: not compared" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--before", str(PTX)), "--before has nothing to be compared with (--after FILE)"),
        (("--after-label", "x"), "nothing to be compared with"),
        (("--before-ncu", str(PTX), "--after", str(PTX)), f"--before-ncu {PTX} is ptx"),
        (("--before", str(PTX), "--before-ptx", str(PTX), "--after", str(PTX)), "are both ptx"),
        ((str(PTX), "--before", str(PTX), "--after", str(PTX)), "analyse one file"),
        (("--before", str(PTX), "--after", str(PTX), "--select", "FRX001"), "--select and --ignore"),
        (("--before", str(PTX), "--after", str(PTX), "--format", "html"), "--format html is only for layout findings"),
        (
            ("--before", str(DATA / "traces" / "attention_block_torch215.json.gz"), "--after", str(PTX)),
            "is a trace",
        ),
    ],
)
def test_sides_that_are_wrong(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", *arguments]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
