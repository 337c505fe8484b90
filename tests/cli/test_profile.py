"""`frx profile` as it is typed: on files, and on programs, under a stand-in for ncu."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import jsonschema
import psutil
import pytest
import torch
from ncu_exports import SOL, Launch, long_export, metric
from ncu_reports import A40, ReportLaunch, report
from trial_writer import MARK, seconds_until_gone

from frx_graph.cli.main import run
from frx_graph.evidence.ncu import profiler

PUBLISHED = resources.files("frx_graph.reports").joinpath("frx_explain_v0.schema.json").read_text(encoding="utf-8")
FAKE = Path(__file__).parent / "fake_ncu.py"
PTX = Path(__file__).parent.parent / "data" / "ptx" / "kernels_sm80.ptx"
PYTHON = sys.executable
GREETING = [PYTHON, "-c", "import sys; print('hello'); print('oh', file=sys.stderr)"]
EXPLAINED = ["frx_evidence.json", "frx_llm_prompt.txt", "frx_summary.txt"]


def put_ncu(folder: Path) -> str:
    """A PATH with the stand-in on it."""
    folder.mkdir()
    program = folder / "ncu"
    program.write_text(f"#!{PYTHON} -I\n{FAKE.read_text()}")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def launching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says which kernels programs launch, and what goes wrong with measuring them."""
    monkeypatch.setenv("PATH", put_ncu(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)

    def say(*kernels: str, wrong: str = "", dram: float = 90) -> None:
        monkeypatch.setenv("FAKE_NCU", json.dumps({"launches": kernels, "wrong": wrong, "dram": dram}))

    say("stream")
    return say


@pytest.fixture
def export(tmp_path: Path) -> Path:
    launch = Launch()
    path = tmp_path / "report.csv"
    path.write_text(
        long_export(
            metric(launch, SOL, "Duration", "us", "90.00"),
            metric(launch, SOL, "Compute (SM) Throughput", "%", "20.00"),
            metric(launch, SOL, "Memory Throughput", "%", "90.00"),
            metric(launch, SOL, "DRAM Throughput", "%", "90.00"),
        )
    )
    return path


@pytest.mark.skipif(importlib.util.find_spec("ncu_report") is None, reason="needs the [ncu] extra")
def test_a_binary_report_is_reported_and_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    values = {"gpu__time_duration.sum": 90_000.0, "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 90.0}
    Path("app.ncu-rep").write_bytes(report(ReportLaunch("stream", {**A40, **values})))
    assert run(["profile", "--ncu", "app.ncu-rep", "--explain"]) == 1
    assert "1 launch, a binary report" in capsys.readouterr().out
    explained = Path("frx_evidence.json").read_text()
    assert run(["explain", "app.ncu-rep"]) == 0
    assert Path("frx_evidence.json").read_text() == explained


def test_kernels_are_judged_by_the_gpu_that_is_named(
    export: Path, launching: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "--ptx", str(PTX), "--exit-zero", "--gpu-model", "RTX4090"]) == 0
    assert "RTX 4090" in capsys.readouterr().out
    assert run(["profile", "--ncu", str(export), "--gpu-model", "H1000"]) == 2
    assert "no GPU is known by the name 'H1000'" in capsys.readouterr().err
    assert run(["profile", "--gpu-model", "H100", "--", *GREETING]) == 1
    shown = capsys.readouterr()
    assert "--gpu-model H100 says nothing about these kernels" in " ".join(shown.err.split())
    assert "VERDICT" in shown.out


def test_an_export_is_reported_as_analyze_does(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--ncu", str(export)]) == 1
    profiled = capsys.readouterr().out
    assert run(["analyze", str(export)]) == 1
    assert capsys.readouterr().out == profiled
    assert run(["profile", "--ncu", str(export), "--json", "--exit-zero"]) == 0
    profiled = capsys.readouterr().out
    assert run(["analyze", str(export), "--json", "--exit-zero"]) == 0
    assert capsys.readouterr().out == profiled


def test_ptx_is_reported_as_analyze_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--ptx", str(PTX)]) == 1
    profiled = capsys.readouterr().out
    assert run(["analyze", str(PTX)]) == 1
    assert capsys.readouterr().out == profiled


@pytest.mark.usefixtures("launching")
def test_a_program_is_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--out", "save.csv", "--", *GREETING]) == 1
    out, err = capfd.readouterr()
    assert out.startswith("hello\nVERDICT  save.csv\n")
    assert "Primary bottleneck: memory_bandwidth_bound" in out
    assert err.splitlines()[1:] == ["oh"]
    # What it has kept is an export like any other.
    assert run(["profile", "--ncu", "save.csv"]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "save.csv"]


@pytest.mark.usefixtures("launching")
def test_the_report_names_the_command_that_measures_again(capfd: pytest.CaptureFixture[str]) -> None:
    filters = ["--kernel-name", "regex:s.*m", "--launch-count", "1"]
    assert run(["profile", *filters, "--", *GREETING]) == 1
    lines = [shlex.split(line) for line in capfd.readouterr().out.splitlines() if line.strip().startswith("frx ")]
    assert lines[0] == ["frx", "profile", "--preset", "memory", *filters, "--", *GREETING]
    assert run(lines[0][1:]) == 1


@pytest.mark.usefixtures("launching")
def test_as_json_the_programs_words_go_elsewhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--json", "--preset", "memory", "--", *GREETING]) == 1
    out, err = capfd.readouterr()
    result = json.loads(out)["result"]
    assert (result["source"], result["launches"]) == (shlex.join(GREETING), 1)
    assert "memory" not in result["missing"] or "dram_throughput" not in result["missing"]["memory"]
    assert "hello" in err
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_filters_go_to_ncu(launching: Callable[..., None], capfd: pytest.CaptureFixture[str]) -> None:
    launching("stream", "gemm", "gemm", "gemm")
    command = ["profile", "--json", "--kernel-name", "gemm", "--launch-skip", "1", "--launch-count", "1"]
    run([*command, "--exit-zero", "--", *GREETING])
    (kernel,) = json.loads(capfd.readouterr().out)["result"]["kernels"]
    assert (kernel["kernel_name"], kernel["launches"]) == ("void gemm(float *)", 1)


def test_nothing_that_holds_kernels_back_is_exit_0(launching: Callable[..., None]) -> None:
    launching("stream", dram=10)
    assert run(["profile", "--", *GREETING]) == 0


@pytest.mark.parametrize(
    ("kernels", "wrong", "options", "said"),
    [
        (["stream"], "permission", [], "counters (ERR_NVGPUCTRPERM) (run it with sudo"),
        (["stream"], "driver", [], "ncu could not attach to the program, whose exit code is 1 (the output above"),
        (["stream"], "busy", [], "in use by another tool"),
        (["stream"], "metric", [], "ncu knows no metric gpu__time_duration.sum on this device"),
        ([], "", [], "no kernels were profiled (does the program run on the GPU?"),
        (["a", "b", "a"], "", ["--kernel-name", "c"], "--kernel-name c matches none of a, b (a name must be the whole"),
        (["a"], "", ["--launch-skip", "9"], "no kernels were profiled: these options leave nothing of a"),
    ],
)
def test_reason_ncu_cannot_measure_is_reported(
    launching: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
    kernels: list[str],
    wrong: str,
    options: list[str],
    said: str,
) -> None:
    launching(*kernels, wrong=wrong)
    Path("save.csv").write_text("before")
    assert run(["profile", *options, "--out", "save.csv", "--", *GREETING]) == 2
    out, err = capfd.readouterr()
    assert said in err
    assert "VERDICT" not in out
    assert Path("save.csv").read_text() == "before"
    assert sorted(path.name for path in Path().iterdir()) == ["bin", "save.csv"]


def test_a_program_that_fails_is_reported_with_its_code(
    launching: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    failing = [PYTHON, "-c", "raise SystemExit(3)"]
    assert run(["profile", "--", *failing]) == 2
    out, err = capfd.readouterr()
    assert "VERDICT" in out
    assert err.endswith("frx: the program ended with exit code 3 (does it run without frx?)\n")
    launching()
    assert run(["profile", "--", *failing]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "the program ended with exit code 3" in err


def test_missing_ncu_prints_the_command_for_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert run(["profile", "--preset", "memory", "--", "python", "train.py", "--lr", "1"]) == 2
    out, err = capfd.readouterr()
    command, error = err.splitlines()
    assert out == ""
    words = shlex.split(command)
    assert words[0] == "ncu"
    assert words[-6:] == ["--log-file", "ncu_report.csv", "python", "train.py", "--lr", "1"]
    assert "ncu was not found" in error
    assert "frx profile --ncu ncu_report.csv" in error


def test_ncu_is_found_in_the_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_ncu(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert profiler.find_ncu() == str(tmp_path / "bin" / "ncu")


@pytest.mark.usefixtures("launching")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name one program or file to profile"),
        (["--ncu", "a.csv", "--ptx", "a.ptx"], "name one program or file to profile"),
        (["--ncu", "a.csv", "--", "python"], "name one program or file to profile"),
        (["--ncu", "a.csv"], "a.csv: no such file"),
        (["--ncu", "a.csv", "--out", "b.csv"], "need a program to run"),
        (["--ptx", "a.ptx", "--preset", "full"], "need a program to run"),
        (["--ncu", str(PTX)], "Nsight Compute CSV export"),
        (["--preset", "memry", "--", "python"], "did you mean memory?"),
        (["--", "./nothing-there"], "./nothing-there is not an executable program (the program comes after --)"),
        ([str(PTX)], "if it is an export, frx profile --ncu"),
        (["--out", "no/folder.csv", "--", PYTHON], "its folder cannot be written to"),
        (["--out", ".", "--", PYTHON], "is not a regular file"),
    ],
)
def test_errors_come_before_anything_runs(capfd: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert run(["profile", *arguments]) == 2
    assert said in capfd.readouterr().err


@pytest.mark.usefixtures("launching")
def test_an_explanation_is_written_beside_the_export(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept").mkdir()
    assert run(["profile", "--explain", "--out", "kept/save.csv", "--", *GREETING]) == 1
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [*EXPLAINED, "save.csv"]
    document = json.loads((tmp_path / "kept" / "frx_evidence.json").read_text())
    jsonschema.Draft202012Validator(json.loads(PUBLISHED)).validate(document)
    assert document["primary_diagnosis"]["label"] == "memory_bandwidth_bound"
    assert shlex.split(document["reprofile_command"])[-3:] == GREETING
    assert "wrote frx_summary.txt, frx_llm_prompt.txt and frx_evidence.json to kept" in capfd.readouterr().err


@pytest.mark.usefixtures("launching")
def test_foreign_file_is_refused_before_anything_runs(capfd: pytest.CaptureFixture[str]) -> None:
    Path("frx_summary.txt").write_text("my notes")
    assert run(["profile", "--explain", "--", *GREETING]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "frx_summary.txt was not written by frx explain" in err
    assert Path("frx_summary.txt").read_text() == "my notes"


def test_files_are_explained_too(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(export.parent)
    assert run(["profile", "--ncu", "report.csv", "--explain", "--json"]) == 1
    assert run(["profile", "--ptx", str(PTX), "--explain"]) == 1
    assert sorted(path.name for path in export.parent.iterdir()) == [*EXPLAINED, "report.csv"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("number", "wrong"),
    [(signal.SIGINT, ""), (signal.SIGTERM, ""), (signal.SIGHUP, ""), (signal.SIGINT, "stubborn")],
)
def test_ending_frx_ends_the_program(tmp_path: Path, number: signal.Signals, wrong: str) -> None:
    # The program goes on when ncu has gone, and has to be killed.
    ignored = "signal.signal(2, signal.SIG_IGN)" if wrong else ""
    program = f"import signal, time; {ignored}; print('runs', flush=True); time.sleep(600)".replace("; ;", ";")
    (tmp_path / "out").mkdir()
    environment = {
        **os.environ,
        MARK: str(tmp_path),
        "PATH": put_ncu(tmp_path / "bin"),
        "FAKE_NCU": json.dumps({"launches": ["stream"], "wrong": wrong}),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [
        "profile",
        "--out",
        str(tmp_path / "out" / "save.csv"),
        "--",
        PYTHON,
        "-c",
        program,
    ]
    with subprocess.Popen(
        [PYTHON, "-m", "frx_graph", *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        assert len(psutil.Process(process.pid).children(recursive=True)) == 2
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == (130 if number is signal.SIGINT else -number)
    assert err.splitlines()[-1] == "frx: interrupted" or number is not signal.SIGINT
    assert seconds_until_gone(str(tmp_path)) is not None
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available() or shutil.which("ncu") is None, reason="needs a GPU, and ncu")
def test_a_real_program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = "import torch; x = torch.ones(1 << 26, device='cuda'); y = x * 2; torch.cuda.synchronize()"
    out = str(tmp_path / "save.csv")
    code = run(["profile", "--json", "--launch-count", "2", "--out", out, "--", PYTHON, "-c", program])
    text, err = capfd.readouterr()
    if "ERR_NVGPUCTRPERM" in err or "in use by another tool" in err:
        pytest.skip(err)
    assert code in (0, 1), err
    result = json.loads(text)["result"]
    assert result["launches"] == 2
    assert result["unread"] == []
    assert not {"duration", "compute_throughput", "dram_throughput"} & set(result["missing"].get("full", ()))
    assert run(["profile", "--kernel-name", "no_such_kernel", "--", PYTHON, "-c", program]) == 2
    assert "matches none" in capfd.readouterr().err
