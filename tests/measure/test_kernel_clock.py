"""The clock in programs that nvcc has made, with a CUDA runtime whose kernels take a microsecond a block."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cuda_programs import HOST, launching, needs_nvcc, source, stub_runtime

from frx_graph.measure.kernel_clock import KernelClock, KernelTime, build_kernel_clock
from frx_graph.measure.nvcc import Nvcc, find_nvcc
from frx_graph.support.supervisor.run import run_program

pytestmark = needs_nvcc


@pytest.fixture(scope="module")
def nvcc(tmp_path_factory: pytest.TempPathFactory) -> Nvcc:
    return Nvcc(find_nvcc() or "none", tmp_path_factory.mktemp("nvcc"))


@pytest.fixture(scope="module")
def clock(nvcc: Nvcc) -> KernelClock:
    found = build_kernel_clock(nvcc, nvcc.temporary)
    assert isinstance(found, KernelClock), found
    return found


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub_runtime(tmp_path_factory.mktemp("runtime"))


def timed(nvcc: Nvcc, clock: KernelClock, runtime: Path, path: Path, *flags: str, stub: str = "") -> KernelTime | None:
    """What the clock says of one run; the program has to end as it does without it."""
    found = nvcc.compile_program(path, nvcc.temporary / "program", arch=None, flags=flags)
    assert found.program is not None, found.errors
    here = {**os.environ, "LD_LIBRARY_PATH": str(runtime), "STUB_CUDA": stub}
    without = run_program([str(found.program)], limit_seconds=60, environment=here)
    ran = run_program([str(found.program)], limit_seconds=60, environment=clock.make_environment(here))
    assert (ran.exit_code, ran.output, ran.errors) == (without.exit_code, without.output, without.errors)
    assert ran.output == b"sum 3.0\n"
    return clock.read()


@pytest.mark.parametrize(("blocks", "launched"), [(7, 1), (3, 5), (2, 10_000)], ids=["one", "some", "more than slots"])
def test_every_launch_is_timed(
    nvcc: Nvcc, clock: KernelClock, runtime: Path, tmp_path: Path, blocks: int, launched: int
) -> None:
    found = timed(nvcc, clock, runtime, launching(tmp_path / "a.cu", blocks=blocks, launched=launched))
    assert found is not None
    assert (found.launches, found.timed) == (launched, launched)
    assert found.seconds == pytest.approx(blocks * launched * 1e-6, rel=1e-5)


def test_times_survive_a_reset(nvcc: Nvcc, clock: KernelClock, runtime: Path, tmp_path: Path) -> None:
    found = timed(nvcc, clock, runtime, launching(tmp_path / "a.cu", blocks=7, last="cudaDeviceReset()"))
    assert found == KernelTime(5, 5, pytest.approx(35e-6, rel=1e-5))


def test_other_ways_to_launch(nvcc: Nvcc, clock: KernelClock, runtime: Path, tmp_path: Path) -> None:
    last = (
        "{ cudaLaunchConfig_t c{}; c.gridDim = dim3(20); cudaLaunchKernelExC(&c, (const void*)kernel, nullptr);"
        " cudaLaunchKernel((const void*)kernel, dim3(3), dim3(1), nullptr, 0, 0); cudaGraphLaunch(nullptr, 0); }"
    )
    found = timed(nvcc, clock, runtime, launching(tmp_path / "a.cu", blocks=7, last=last))
    assert found == KernelTime(8, 8, pytest.approx(158e-6, rel=1e-5))


def test_launches_that_are_captured_are_none(nvcc: Nvcc, clock: KernelClock, runtime: Path, tmp_path: Path) -> None:
    found = timed(nvcc, clock, runtime, launching(tmp_path / "a.cu", blocks=7), stub="capturing")
    assert found == KernelTime(0, 0, 0.0)


def test_launches_without_a_time_are_counted(nvcc: Nvcc, clock: KernelClock, runtime: Path, tmp_path: Path) -> None:
    found = timed(nvcc, clock, runtime, launching(tmp_path / "a.cu", blocks=7), stub="no_events")
    assert found == KernelTime(5, 0, 0.0)


def test_a_program_without_kernels(nvcc: Nvcc, clock: KernelClock, runtime: Path, tmp_path: Path) -> None:
    assert timed(nvcc, clock, runtime, source(tmp_path / "a.cu", HOST)) == KernelTime(0, 0, 0.0)


def test_a_program_that_does_not_end_by_exit(nvcc: Nvcc, clock: KernelClock, runtime: Path, tmp_path: Path) -> None:
    path = launching(tmp_path / "a.cu", blocks=7, last="std::fflush(stdout); std::_Exit(0)")
    path.write_text("#include <cstdlib>\n" + path.read_text())
    assert timed(nvcc, clock, runtime, path) is None


@pytest.mark.parametrize("text", ["", "1 2", "a b c", "5 5 nan", "1 1 1 1", "1.5 1 1"])
def test_times_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    clock = KernelClock(tmp_path / "none.so", tmp_path / "times")
    assert clock.read() is None
    clock.times.write_text(text)
    assert clock.read() is None


def test_times_are_read_once_and_what_is_preloaded_stays(tmp_path: Path) -> None:
    clock = KernelClock(tmp_path / "clock.so", tmp_path / "times")
    clock.times.write_text("5 4 1.5\n")
    assert clock.read() == KernelTime(5, 4, 0.0015)
    assert clock.read() is None
    found = clock.make_environment({"LD_PRELOAD": "x.so", "CUDA_MODULE_LOADING": "LAZY", "A": "b"})
    assert found["LD_PRELOAD"] == f"{clock.library} x.so"
    assert (found["A"], found["CUDA_MODULE_LOADING"]) == ("b", "EAGER")


def test_a_clock_that_cannot_be_compiled(tmp_path: Path) -> None:
    broken = tmp_path / "nvcc"
    broken.write_text("#!/bin/sh\necho no headers >&2\nexit 1\n")
    broken.chmod(0o755)
    assert build_kernel_clock(Nvcc(str(broken), tmp_path), tmp_path) == (
        "the clock of kernels cannot be compiled: no headers"
    )
