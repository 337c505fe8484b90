"""What is sampled while a workload runs."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from frx_graph.evidence.run.device_samples import read_device_samples
from frx_graph.runs.collect import sampling
from frx_graph.runs.collect.sampling import Sampler, find_visible_devices, make_device_reader, make_host_reader

BEGIN = datetime(2026, 1, 2, tzinfo=UTC)
MIB = 2**20


class NVMLError(Exception):
    pass


def nvml(**asked: Any) -> Any:
    """A library that tells of two devices what is given, of both the same."""

    def refuse(*_: object) -> None:
        raise NVMLError

    functions = {f"nvmlDeviceGet{name}": lambda *_, known=known: known for name, known in asked.items()}
    names = ("UtilizationRates", "MemoryInfo", "ClockInfo", "Temperature", "PowerUsage")
    return SimpleNamespace(
        **{f"nvmlDeviceGet{name}": refuse for name in names}
        | functions
        | {
            "NVMLError": NVMLError,
            "NVML_CLOCK_SM": 1,
            "NVML_CLOCK_MEM": 2,
            "NVML_TEMPERATURE_GPU": 0,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda number: f"handle {number}",
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle[-1]}abc",
        }
    )


def test_devices_are_sampled_as_nvidia_smi_prints_them(tmp_path: Path) -> None:
    library = nvml(
        UtilizationRates=SimpleNamespace(gpu=40, memory=5),
        MemoryInfo=SimpleNamespace(used=512 * MIB + 5, total=1024 * MIB),
        ClockInfo=1500,
        Temperature=60,
        PowerUsage=71_239,
    )
    path = tmp_path / "gpu_metrics.csv"
    rows = make_device_reader(library, find_visible_devices(library, {}), lambda: BEGIN)()
    path.write_bytes(sampling.DEVICE_HEADER + rows)
    assert rows.splitlines()[1] == b"2026-01-02T00:00:00.000000+00:00, 1, 40, 5, 512, 1024, 1500, 1500, 60, 71.24"
    first, second = read_device_samples(path)
    assert (first.device, second.device) == (0, 1)
    assert (first.busy_pct, first.memory_busy_pct) == (40, 5)
    assert (first.memory_used, first.memory_total) == (512 * MIB, 1024 * MIB)


def test_unreported_device_values_are_missing_and_not_zero(tmp_path: Path) -> None:
    path = tmp_path / "gpu_metrics.csv"
    path.write_bytes(sampling.DEVICE_HEADER + make_device_reader(nvml(), {0: "handle 0"}, lambda: BEGIN)())
    (sample,) = read_device_samples(path)
    assert (sample.device, sample.busy_pct, sample.memory_used) == (0, None, None)


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [(None, [0, 1]), ("1", [1]), ("1,0", [0, 1]), ("0, 7, 1", [0]), ("", []), ("-1", []), ("GPU-1abc", [1])],
)
def test_only_devices_that_the_workload_sees_are_sampled(visible: str | None, numbers: list[int]) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert list(find_visible_devices(nvml(), environ)) == numbers


def test_driver_without_devices_is_not_an_error() -> None:
    library = nvml()

    def lost() -> int:
        raise NVMLError

    library.nvmlDeviceGetCount = lost
    assert find_visible_devices(library, {}) == {}


@pytest.fixture
def busy() -> Iterator[int]:
    """A process that has a child; both take a processor each."""
    loop = "while True: pass"
    program = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {loop!r}])\nprint(flush=True)\n{loop}"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_processes_are_sampled_with_what_they_have_started(busy: int) -> None:
    moments = iter(BEGIN + timedelta(seconds=second) for second in (0, 1))
    rows = make_host_reader(os.getpid(), lambda: next(moments))
    first = rows()
    time.sleep(0.3)
    second = rows()
    text = (sampling.HOST_HEADER + first + second).decode()
    before, after = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    assert int(after["processes"]) >= 2
    # The first sample has no earlier one to compare with.
    assert before["cpu [%]"] == "[N/A]"
    assert 1 < float(after["cpu [%]"]) < 200
    assert float(after["memory.rss [MiB]"]) > 5


def test_a_workload_that_has_ended_has_no_row() -> None:
    process = subprocess.Popen(["sleep", "0"])
    process.wait()
    sleeping = subprocess.Popen(["sleep", "60"])
    try:
        assert make_host_reader(sleeping.pid)() == b""
    finally:
        sleeping.kill()
        sleeping.wait()


def test_rows_are_appended_until_it_is_stopped(tmp_path: Path) -> None:
    taken = threading.Semaphore(0)
    path = tmp_path / "rows"
    path.write_bytes(b"header\n")

    def take() -> bytes:
        taken.release()
        return b"row\n"

    sampler = Sampler(path, 0.001, take)
    sampler.start()
    for _ in range(5):
        taken.acquire()
    sampler.stop()
    rows = path.read_bytes().splitlines()
    assert rows[0] == b"header"
    assert len(rows) >= 6
    assert sampler.problem is None
    time.sleep(0.05)
    assert path.read_bytes().splitlines() == rows


def test_one_sample_is_taken_in_the_beginning_and_one_in_the_end(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path / "rows", 3600, lambda: b"row\n")
    sampler.start()
    while not (tmp_path / "rows").exists() or not (tmp_path / "rows").stat().st_size:
        time.sleep(0.001)
    sampler.stop()
    assert (tmp_path / "rows").read_bytes() == b"row\nrow\n"


def test_sampling_failure_is_reported_but_does_not_raise(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise RuntimeError("the driver is gone")

    sampler = Sampler(tmp_path / "rows.csv", 1, fail)
    sampler.start()
    sampler.stop()
    assert sampler.problem == "rows.csv is incomplete: the driver is gone"


def test_a_driver_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_STOP_SECONDS", 0.05)
    go = threading.Event()

    def hang() -> bytes:
        go.wait(60)
        return b""

    sampler = Sampler(tmp_path / "rows.csv", 1, hang)
    sampler.start()
    sampler.stop()
    go.set()
    assert sampler.problem == "rows.csv is incomplete: the last sample did not arrive"


def test_samples_have_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MOST_BYTES", 10)
    sampler = Sampler(tmp_path / "rows.csv", 0.001, lambda: b"1234\n")
    sampler.start()
    while sampler.problem is None:
        time.sleep(0.001)
    sampler.stop()
    assert (tmp_path / "rows.csv").read_bytes() == b"1234\n1234\n"
