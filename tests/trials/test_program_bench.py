"""Two programs against each other, really compiled and run; the GPU is made up, and kernels take a microsecond a
block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from cuda_programs import HOST, NO_MAIN, launching, needs_nvcc, source, stub_runtime

from frx_graph.errors import EvidenceError
from frx_graph.measure.machine.device_state import list_gpu_names
from frx_graph.measure.nvcc import Nvcc, find_nvcc
from frx_graph.trials.program_bench import BenchOptions, BenchRun, bench_programs
from frx_graph.trials.program_outputs import Agreement
from frx_graph.trials.program_times import Direction
from frx_graph.trials.schedule import Arm

pytestmark = needs_nvcc
Bench = Callable[..., BenchRun]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Runs two sources against each other; takes options, and the GPUs to believe in."""
    folder = tmp_path / "temporary"
    folder.mkdir()

    def run(before: Path, after: Path, gpus: tuple[str, ...] = ("Made up",), **options: object) -> BenchRun:
        asked = BenchOptions(**{"runs": 4, "warmup": 1, "arch": "sm_80", **options})
        nvcc = Nvcc(find_nvcc() or "none", folder)
        return bench_programs(before, after, asked, gpus=gpus, nvcc=nvcc, progress=lambda _: None)

    return run


@pytest.mark.integration
def test_kernel_times_and_wall_times(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub_runtime(tmp_path)))
    before, after = launching(tmp_path / "a.cu", blocks=900), launching(tmp_path / "b.cu", blocks=300)
    found = bench(before, after)
    assert found.not_run_because is None
    assert found.wall is not None
    assert len(found.wall.before_seconds) == len(found.wall.after_seconds) == 4
    assert all(0.0005 < seconds < 30 for seconds in found.wall.before_seconds)
    assert found.outputs is not None
    assert found.outputs.agreement is Agreement.IDENTICAL
    assert found.varying == ()
    assert found.kernels is not None, found.no_kernel_times
    assert found.kernels.times.speedup == pytest.approx(3.0, rel=1e-4)
    assert found.kernels.times.direction is Direction.FASTER
    assert found.kernels.times.before_seconds == pytest.approx([0.0045] * 4, rel=1e-4)
    assert (found.kernels.before.launches, found.kernels.after.launches) == (5, 5)
    assert Counter(found.order) == {Arm.BASELINE: 4, Arm.CANDIDATE: 4}


def test_without_a_gpu_nothing_is_run_but_kernels_are_known(bench: Bench, tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    runs = f'#include <cstdio>\nint main() {{ std::fopen("{planted}", "w"); return 0; }}\n{NO_MAIN}'
    before, after = source(tmp_path / "a.cu", runs), launching(tmp_path / "b.cu", blocks=1)
    found = bench(before, after, gpus=())
    assert "no NVIDIA GPU" in (found.not_run_because or "")
    assert not planted.exists()
    assert (found.wall, found.kernels, found.outputs) == (None, None, None)
    assert [len(side.compiled.kernels) for side in (found.before, found.after)] == [1, 1]


@pytest.mark.integration
def test_both_sides_errors_are_kept(bench: Bench, tmp_path: Path) -> None:
    before, after = source(tmp_path / "a.cu", NO_MAIN), source(tmp_path / "b.cu", "int main() { return nothing; }")
    found = bench(before, after)
    assert found.before.compiled.lacks_main
    assert "nothing" in found.after.compiled.errors
    assert found.not_run_because == f"not compiled: {before}, {after}"
    with pytest.raises(EvidenceError, match="no such file"):
        bench(before, tmp_path / "none.cu")


PRINTS = "#include <cstdio>\n#include <unistd.h>\nint main() {{ {0}; return {1}; }}\n"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("does", "code", "says"),
    [
        ('std::fputs("bad", stderr)', "7", "exit code 7"),
        ("sleep(600)", "0", "had not ended"),
        ("for (;;) std::puts(__FILE__)", "0", "MiB"),
        ("*(volatile int*)0 = 1", "0", "SIGSEGV"),
    ],
    ids=["fails", "hangs", "floods", "crashes"],
)
def test_unusable_run_stops_the_benchmark(bench: Bench, tmp_path: Path, does: str, code: str, says: str) -> None:
    good, bad = source(tmp_path / "good.cu", HOST), source(tmp_path / "bad.cu", PRINTS.format(does, code))
    found = bench(good, bad, limit_seconds=4.0)
    assert found.before.problem is None
    assert says in (found.after.problem or "")
    assert str(bad) in (found.not_run_because or "")
    assert (found.wall, found.outputs) == (None, None)
    assert found.after.errors == (b"bad" if code == "7" else b"")


@pytest.mark.integration
def test_outputs_that_differ_and_outputs_that_vary(bench: Bench, tmp_path: Path) -> None:
    one = source(tmp_path / "one.cu", PRINTS.format('std::printf("sum 1.0000001\\n")', 0))
    two = source(tmp_path / "two.cu", PRINTS.format('std::printf("sum %f %d\\n", 1.0, (int)getpid())', 0))
    found = bench(one, two, warmup=0)
    assert found.outputs is not None
    assert found.outputs.agreement is Agreement.DIFFERENT
    assert found.varying == (Arm.CANDIDATE,)
    assert found.kernels is None
    assert "no launch of" in (found.no_kernel_times or "")


@pytest.mark.integration
def test_kernel_times_that_cannot_be_had(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub_runtime(tmp_path)))
    quick = launching(tmp_path / "quick.cu", blocks=1, last="std::fflush(stdout); std::_Exit(0)")
    quick.write_text("#include <cstdlib>\n" + quick.read_text())
    good = launching(tmp_path / "good.cu", blocks=1)
    found = bench(good, quick)
    assert found.wall is not None
    assert found.no_kernel_times == "after left no times: it did not end by exit, or return from main"
    monkeypatch.setenv("STUB_CUDA", "no_events")
    assert "5 of 5 launches of" in (bench(good, good).no_kernel_times or "")


GPU = """#include <cstdio>
__global__ void spin(long long cycles) { long long begin = clock64(); while (clock64() - begin < cycles) {} }
int main() {
  for (int i = 0; i < 10; ++i) spin<<<1, 32>>>(CYCLES);
  if (cudaDeviceSynchronize() != cudaSuccess) return 1;
  std::puts("done");
  return 0;
}
"""


@pytest.mark.cuda
@pytest.mark.skipif(not list_gpu_names(), reason="there is no NVIDIA GPU")
def test_kernels_of_a_real_gpu(bench: Bench, tmp_path: Path) -> None:
    """Ten launches of ten million cycles: at 0.2 to 4 GHz, 25 to 500 ms; half the cycles are half the time."""
    before = source(tmp_path / "a.cu", f"#define CYCLES 10000000\n{GPU}")
    after = source(tmp_path / "b.cu", f"#define CYCLES 5000000\n{GPU}")
    found = bench(before, after, gpus=list_gpu_names(), arch=None, runs=10)
    assert found.kernels is not None, found.no_kernel_times
    assert (found.kernels.before.launches, found.kernels.before.timed) == (10, 10)
    assert found.kernels.times.direction is Direction.FASTER
    assert found.kernels.times.speedup == pytest.approx(2.0, rel=0.2)
    assert all(0.02 < seconds < 1.0 for seconds in found.kernels.times.before_seconds)
