"""The examples of the published command line, each as its documentation types it, with `frx` for its program.

Beside each that ends in an error here is the reason. Examples that measure a program with ncu, time CUDA programs, or
tune for minutes are run elsewhere: `test_profile.py`, `test_bench.py`, `test_tune.py`, with what stands in for them.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from ncu_exports import SOL, Launch, long_export, metric
from written_runs import waiting_run

from frx_graph.cli.main import run

DATA = Path(__file__).parent.parent / "data"
BASELINE = "__global__ void scale(float* x, int stride) { x[threadIdx.x * stride] *= 2.0f; }\n"
OPTIMIZED = "__global__ void scale(float* x, int stride) { x[threadIdx.x] *= 2.0f; }\n"
COUNTS = "for number in range(3):\n    print(number)\n"

WORKS = (
    "init",
    "collect --explain -- python count.py",
    "collect --name tiny-kernel-launch-overhead --out runs --sample-interval-ms 100 "
    "--artifact-dir gpu-job-run-tiny-kernels --explain -- python count.py --output-dir gpu-job-run-tiny-kernels",
    "collect --artifact-dir gpu-job-run-tiny-kernels --explain -- python count.py",
    "profile --ncu report.csv --explain",
    "profile --ncu ncu_report.csv --explain",
    "profile --ptx kernel.ptx",
    "profile --ptx kernel.ptx --gpu-model L4",
    "analyze runs/run-abc123",
    "analyze runs/run-abc123.zip",
    "analyze kernel.cu",
    "analyze kernel.cu --gpu-model RTX4090",
    "analyze kernel.cu --gpu-model H100",
    "analyze kernel.cuh --output-json",
    "analyze kernel.ptx",
    "analyze kernel.ptx --json",
    "analyze profile.csv",
    "analyze ncu_report.csv --json",
    "analyze kernel.cu --output-json",
    "analyze --before before.csv --after after.csv",
    "analyze --before before.ptx --after after.ptx",
    "analyze --before before.csv --after after.csv --json",
    "analyze --before-source before.cu --before-ptx before.ptx --before-ncu before.csv --after-source after.cu "
    "--after-ptx after.ptx --after-ncu after.csv --before-label baseline --after-label optimized",
    "compare baseline.cu optimized.cu",
    "compare baseline.cu optimized.cu --ncu-a baseline.csv --ncu-b optimized.csv",
    "compare baseline.cu optimized.cu --gpu-model H100",
    "compare baseline.cu optimized.cu --gpu-model RTX4090",
    "compare baseline.cu optimized.cu --json",
    "explain report.csv",
    "explain report.csv --source kernel.cu",
    "explain report.csv --out explain_out",
    "explain runs/my-run --out explain_out",
    "ncu-command --list",
    "ncu-command --list --json",
    "ncu-command full --output ncu_report.csv -- python train.py",
    "ncu-command memory --output ncu_memory.csv -- python train.py",
    "ncu-command occupancy --launch-count 10 --output ncu_occupancy.csv -- python train.py",
    'ncu-command stalls --kernel-name "my_kernel" --launch-skip 10 --launch-count 5 --output ncu_stalls.csv '
    "-- python train.py",
)
ENDS_IN_AN_ERROR = {
    # A question needs a terminal. `--yes` answers it.
    "init --patch train.py": "there is no terminal to ask on",
    # The flags go to nvcc, which compiles only for PTX and counters.
    'compare baseline.cu optimized.cu --build-flags "-DBUILD_EXECUTABLE"': "--with-ptx",
    # Nothing is measured without ncu.
    "profile --explain -- python train.py": "ncu",
    'profile --preset memory --kernel-name "my_kernel" --launch-count 5 -- python train.py': "ncu",
    "profile --preset occupancy --gpu-model H100 --out ncu_occupancy.csv -- python train.py": "ncu",
    "compare baseline.cu optimized.cu --with-ptx --with-ncu": "ncu",
    "bench bad.cu good.cu --with-ncu": "nvcc was not found",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the examples name."""
    monkeypatch.chdir(tmp_path)
    export = long_export(
        metric(Launch(), SOL, "Duration", "us", "90.00"),
        metric(Launch(), SOL, "Compute (SM) Throughput", "%", "20.00"),
        metric(Launch(), SOL, "Memory Throughput", "%", "90.00"),
        metric(Launch(), SOL, "DRAM Throughput", "%", "90.00"),
    )
    for name in ("report", "ncu_report", "profile", "before", "baseline"):
        (tmp_path / f"{name}.csv").write_text(export)
    for name in ("after", "optimized"):
        (tmp_path / f"{name}.csv").write_text(export.replace("90.00", "60.00"))
    for name in ("kernel.cu", "kernel.cuh", "before.cu", "baseline.cu", "bad.cu"):
        (tmp_path / name).write_text(BASELINE)
    for name in ("after.cu", "optimized.cu", "good.cu"):
        (tmp_path / name).write_text(OPTIMIZED)
    for name in ("kernel", "before", "after"):
        shutil.copy(DATA / "ptx" / "kernels_sm80.ptx", tmp_path / f"{name}.ptx")
    (tmp_path / "count.py").write_text(COUNTS)
    (tmp_path / "train.py").write_text("for batch in loader:\n    model(batch).backward()\n    optimizer.step()\n")
    (tmp_path / "gpu-job-run-tiny-kernels").mkdir()
    for name in ("run-abc123", "my-run"):
        waiting_run().write(tmp_path / "runs" / name)
    shutil.make_archive(str(tmp_path / "runs" / "run-abc123"), "zip", tmp_path / "runs", "run-abc123")
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("line", WORKS)
def test_it_works(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shlex.split(line)) in (0, 1)
    out, err = capsys.readouterr()
    assert out or "wrote" in err or "collect completed" in err
    assert "internal error" not in err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("line", "said"), ENDS_IN_AN_ERROR.items())
def test_it_says_why_not(
    line: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(shlex.split(line)) == 2
    assert said in capsys.readouterr().err
