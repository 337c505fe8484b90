"""`frx bench` from its arguments to its exit code, with sources that are really compiled; GPUs are made up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
import typer
from cuda_programs import HOST, NO_MAIN, needs_nvcc, source
from trial_writer import MARK, marked, seconds_until_gone

from frx_graph.cli import bench as module
from frx_graph.cli.bench import bench
from frx_graph.cli.options import evidence_options
from frx_graph.errors import EvidenceError, OptionError
from frx_graph.support.supervisor.process import extend_pythonpath
from frx_graph.support.supervisor.run import ProgramRun, run_program
from frx_graph.trials import program_bench

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_bench_v0.schema.json").read_text(encoding="utf-8")
FAKE_NCU = Path(__file__).parent / "fake_ncu.py"
PRINTS = '#include <cstdio>\nint main() {{ std::puts("{0}"); return 0; }}\n'
SLEEPS = "#include <unistd.h>\nint main() { return sleep(600); }\n"


def run(*arguments: object) -> int:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(bench)
    code: int = app(args=[str(argument) for argument in arguments], standalone_mode=False)
    return code


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "list_gpu_names", lambda: ("Made up",))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "list_gpu_names", lambda: ())


@pytest.mark.integration
@needs_nvcc
def test_faster_slower_and_something_else(
    gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs really run; how long they take is made up."""

    def timed(arguments: Sequence[str], **limits: Any) -> ProgramRun:
        ran = run_program(arguments, **limits)
        return replace(ran, seconds=0.1 if Path(arguments[0]).name in quick else 0.4)

    monkeypatch.setattr(program_bench, "run_program", timed)
    one = source(tmp_path / "one.cu", PRINTS.format("1.5"))
    same = source(tmp_path / "same.cu", PRINTS.format("1.5"))
    other = source(tmp_path / "other.cu", PRINTS.format("2.5"))
    few = ("--runs", 4, "--warmup", 0)
    quick = {"after"}
    assert run(one, same, *few) == 0
    out, err = capsys.readouterr()
    assert out.startswith("FASTER")
    assert "identical, byte for byte" in out
    assert err == ""
    assert run(one, other, *few) == 1
    assert "DIFFERENT: 1 of 1 number beyond" in capsys.readouterr().out
    quick = {"before"}
    assert run(one, same, *few, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["speedup_x"]) == ("slower", 0.25)


@pytest.mark.integration
@needs_nvcc
def test_without_a_gpu_it_exits_with_2(no_gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = source(tmp_path / "a.cu", HOST + NO_MAIN)
    assert run(path, path, "--json", "--arch", "sm_90", "--build-flags", "-O1 -DX='a b'") == 2
    document = json.loads(capsys.readouterr().out)
    assert "no NVIDIA GPU" in document["not_run_because"]
    assert (document["arch"], document["build_flags"]) == ("sm_90", ["-O1", "-DX=a b"])
    assert document["before"]["architectures"] == ["sm_90"]
    assert document["before"]["kernels"][0]["registers"] > 0
    assert document["compile_errors"] == {"before": None, "after": None}


@needs_nvcc
def test_compile_failure_exits_with_2(gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(source(tmp_path / "a.cu", NO_MAIN), source(tmp_path / "b.cu", "int main() { return x; }")) == 2
    out = capsys.readouterr().out
    assert "it needs a main" in out
    assert 'identifier "x" is undefined' in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--runs", 5), "--runs 5 is odd .*: 6"),
        (("--time-limit", "inf"), "--time-limit must be finite"),
        (("--arch", "H100"), "no --arch H100"),
        (("--arch", "sm_90", "--gpu-model", "H100"), "both choose the GPU to compile for"),
        (("--gpu-model", "H1000"), "no GPU is known by the name"),
        (("--arch", "sm_90 -o x"), "no --arch"),
        (("--build-flags", "-DX='"), "--build-flags .*quot"),
    ],
)
def test_options_that_are_wrong_are_errors_at_once(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], says: str
) -> None:
    monkeypatch.setattr(module, "bench_programs", lambda *_, **__: pytest.fail("something was run"))
    with pytest.raises(OptionError, match=says):
        run("a.cu", "b.cu", *arguments)


def test_without_nvcc_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_options, "find_nvcc", lambda: None)
    with pytest.raises(EvidenceError, match="nvcc was not found"):
        run("a.cu", "b.cu")


@needs_nvcc
def test_no_such_file(gpu: None, tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"none\.cu: no such file"):
        run(tmp_path / "none.cu", tmp_path / "none.cu")


PROGRAM = """
import sys
from frx_graph.cli import bench
from frx_graph.cli.main import run
bench.list_gpu_names = lambda: ("Made up",)
sys.exit(run(["bench", "a.cu", "b.cu"]))
"""


def to_one(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


def to_all(process: subprocess.Popen[str]) -> None:
    """As a terminal does."""
    os.killpg(process.pid, signal.SIGINT)


def terminate(process: subprocess.Popen[str]) -> None:
    process.terminate()


@pytest.mark.integration
@needs_nvcc
@pytest.mark.parametrize(
    ("end", "code", "at"),
    [(to_one, 130, "a program"), (to_all, 130, "the compiler"), (terminate, -15, "a program")],
    ids=["Ctrl-C", "Ctrl-C of the group, while it compiles", "SIGTERM"],
)
def test_terminated_bench_leaves_nothing(
    tmp_path: Path, end: Callable[[subprocess.Popen[str]], None], code: int, at: str
) -> None:
    for name in ("a.cu", "b.cu"):
        source(tmp_path / name, SLEEPS)
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, **extend_pythonpath(), MARK: str(tmp_path), "TMPDIR": str(tmp_path / "temporary")}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=pipe,
        stderr=pipe,
        text=True,
        env=environment,
        cwd=tmp_path,
        start_new_session=True,
    ) as process:
        try:
            wait_for_child(process, "before" if at == "a program" else "nvcc")
        finally:
            end(process)
        _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert said.strip().splitlines()[-1:] == (["frx: interrupted"] if code == 130 else [])
    assert seconds_until_gone(str(tmp_path)) is not None, marked(str(tmp_path), but=0)
    assert list((tmp_path / "temporary").iterdir()) == []


def wait_for_child(process: subprocess.Popen[str], name: str) -> None:
    """Until a program of this name runs."""
    deadline = time.monotonic() + 120
    while name not in running(psutil.Process(process.pid)):
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running(parent: psutil.Process) -> set[str]:
    """Names of what it has started. A program that ends while it is looked at has none."""
    names = set()
    for child in parent.children(recursive=True):
        with contextlib.suppress(psutil.Error, FileNotFoundError):
            if child.status() != psutil.STATUS_ZOMBIE:
                names.add(child.name())
    return names


@pytest.fixture
def profiler(gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A stand-in for ncu; programs that need no GPU to be measured are compiled for a real architecture."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ncu").write_text(f"#!{sys.executable} -I\n{FAKE_NCU.read_text()}")
    (folder / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def say(*kernels: str, wrong: str = "") -> None:
        monkeypatch.setenv("FAKE_NCU", json.dumps({"launches": kernels, "wrong": wrong, "dram": 90}))

    say("stream")
    return say


FEW = ("--runs", 4, "--warmup", 0, "--gpu-model", "sm_90")


@pytest.mark.integration
@needs_nvcc
def test_ncu_results_are_shown_beside_the_times(
    profiler: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = source(tmp_path / "a.cu", PRINTS.format("1.5"))
    assert run(path, path, *FEW, "--with-ncu", "--json") in (0, 1)
    out, err = capsys.readouterr()
    document = json.loads(out)
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(document)
    assert document["arch"] == "sm_90"
    (kernel,) = document["ncu_diff"]["kernels"]
    assert (kernel["kernel_a"], kernel["seconds_a"], kernel["speedup_x"]) == ("void stream(float *)", 9e-5, 1.0)
    assert document["no_ncu_diff_because"] is None
    assert "1.5" not in out.partition("{")[0], "what programs print under ncu goes to standard error"
    assert "frx: measuring after with ncu" in err


@pytest.mark.integration
@needs_nvcc
def test_times_are_reported_even_if_ncu_fails(
    profiler: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiler("stream", wrong="permission")
    path = source(tmp_path / "a.cu", PRINTS.format("1.5"))
    assert run(path, path, *FEW, "--with-ncu") in (0, 1)
    out = " ".join(capsys.readouterr().out.split())
    assert "Nsight Compute not known: " in out
    assert "ERR_NVGPUCTRPERM" in out
    assert "identical, byte for byte" in out


def test_with_ncu_needs_ncu(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bench_programs", lambda *_, **__: pytest.fail("something was run"))
    monkeypatch.setattr(evidence_options, "find_nvcc", lambda: "nvcc")
    monkeypatch.setattr(evidence_options, "find_ncu", lambda: None)
    with pytest.raises(EvidenceError, match="ncu was not found"):
        run("a.cu", "b.cu", "--with-ncu")
