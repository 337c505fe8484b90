import dataclasses
import importlib.metadata
from pathlib import Path

import pytest
import torch

from frx_graph.doctor import installation, machine, torch_build
from frx_graph.doctor.installation import check_installation
from frx_graph.errors import ContractError, EvidenceError
from frx_graph.measure.machine.device_profile import DeviceProfile
from frx_graph.measure.operators.operator_contract import load_contract
from frx_graph.measure.page_faults import PageFaults
from frx_graph.support.allocator import Allocation
from frx_graph.support.check import Check, Status, find_worst


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FRX_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_every_question_is_answered() -> None:
    checks = {each.name: each for each in check_installation()}
    expected = {
        "frx-graph",
        "python",
        "torch",
        "cpu",
        "cpu capabilities",
        "allocator",
        "oneDNN",
        "copy recorder",
        "C++ compiler",
        "triton",
        "CUDA available",
        "NVML",
        "ncu",
        "nvcc",
        "ptxas",
        "SDK",
        "analysis",
        "cache",
        "bandwidth of cpu",
        "layout contract for cpu",
        "torch.compile backend",
    }
    assert expected <= set(checks)
    assert torch.__version__ == checks["torch"].value
    assert "aten::copy_" in checks["copy recorder"].value
    assert all(each.hint or each.status is Status.OK for each in checks.values())
    if not torch.cuda.is_available():
        assert checks["CUDA available"].value.startswith("no: ")


def test_without_torch_the_rest_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "is_torch_installed", lambda: False)
    checks = {each.name: each for each in check_installation()}
    assert "pip install 'frx-graph[torch]'" in checks["torch"].value
    assert {"python", "SDK", "analysis", "NVML", "ncu", "cache"} <= set(checks)
    assert "oneDNN" not in checks
    assert find_worst(checks.values()) is Status.OK


def test_the_worst_status_counts() -> None:
    fine, warned, failed = Check("a", ""), Check("b", "", Status.WARNING), Check("c", "", Status.ERROR)
    assert find_worst(()) is Status.OK
    assert find_worst((fine,)) is Status.OK
    assert find_worst((warned, fine)) is Status.WARNING
    assert find_worst((warned, failed, fine)) is Status.ERROR


def run(look: str) -> Check:
    (found,) = getattr(torch_build if hasattr(torch_build, look) else installation, look)()
    return found


def test_a_contract_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    found = run("_check_contracts")
    assert found.status is Status.WARNING
    assert "nearest" in found.value
    assert "frx probe" in found.hint


def test_a_contract_of_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = load_contract("cpu", "2.15.0")
    other = dataclasses.replace(shipped, measured_on={"cpu_capability": "Z80"})
    monkeypatch.setattr(torch_build, "load_contract", lambda *_: other)
    found = run("_check_contracts")
    assert (found.status, "Z80" in found.value) == (Status.WARNING, True)


def test_no_contract_and_a_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "load_contract", lambda *_: None)
    assert run("_check_contracts").status is Status.WARNING

    def broken(*_: str) -> None:
        raise ContractError("cpu-2.15.yaml is malformed")

    monkeypatch.setattr(torch_build, "load_contract", broken)
    assert run("_check_contracts").status is Status.ERROR


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FRX_CACHE_DIR", str(tmp_path / "file" / "below"))
    found = run("_check_cache")
    assert found.status is Status.WARNING
    assert "FRX_CACHE_DIR" in found.hint


def test_the_size_of_the_cache(tmp_path: Path) -> None:
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "x").write_bytes(b"0" * 2048)
    assert "1 files, 2 KiB" in run("_check_cache").value
    assert list(tmp_path.iterdir()) == [tmp_path / "contracts"]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = next(iter(torch_build._check_compilers()))
    assert (found.name, found.status) == ("C++ compiler", Status.WARNING)


@pytest.mark.parametrize(
    ("cxx", "platform", "expected"),
    [
        (None, "linux", None),
        (None, "darwin", "clang++"),
        ("clang++ -v", "linux", "clang++"),
        ("missing", "darwin", None),
        ("", "darwin", None),
    ],
)
def test_the_compiler_is_the_one_that_inductor_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cxx: str | None, platform: str, expected: str | None
) -> None:
    """With clang++ alone on the path."""
    program = tmp_path / "clang++"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.platform", platform)
    if cxx is None:
        monkeypatch.delenv("CXX", raising=False)
    else:
        monkeypatch.setenv("CXX", cxx)
    assert next(torch_build._check_compilers()).value == ("none found" if expected is None else str(program))


def test_a_backend_that_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    assert run("_check_backend").status is Status.ERROR


def test_a_backend_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("frx", "frx_graph.nowhere:frx", "torch_dynamo_backends")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: (entry,))
    found = run("_check_backend")
    assert (found.status, "frx_graph.nowhere" in found.value) == (Status.ERROR, True)


def test_a_recorder_that_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self) -> None:
            raise EvidenceError("a torch profiler is already running")

    monkeypatch.setattr(torch_build, "CopyRecorder", Broken)
    assert run("_check_recording").status is Status.ERROR


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_onednn_switched_off() -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        assert run("_check_onednn").status is Status.WARNING


def test_a_torch_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.1")
    (found,) = torch_build._check_version()
    assert found.status is Status.ERROR


def of_gpus(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(names))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: names[index])


def test_gpus_are_counted_by_name_and_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    of_gpus(monkeypatch, "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "Made up 9000")
    (available,) = torch_build._check_cuda()
    assert available.value == "NVIDIA H100 80GB HBM3 x2, Made up 9000 x1"
    known, unknown = machine.check_gpu_model(torch_build.list_torch_gpus())
    assert "sm_90" in known.value
    assert (known.status, unknown.status) == (Status.OK, Status.WARNING)
    of_gpus(monkeypatch)
    assert list(machine.check_gpu_model(torch_build.list_torch_gpus())) == []


def test_a_gpu_whose_driver_cannot_be_asked_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (machine, torch_build):
        monkeypatch.setattr(module, "load_nvml", lambda: None)
    of_gpus(monkeypatch)
    (without,) = machine.check_driver()
    assert without.status is Status.OK
    assert list(torch_build._check_sampling()) == []
    of_gpus(monkeypatch, "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    (missing,) = torch_build._check_sampling()
    assert missing.status is Status.WARNING


def test_a_part_that_cannot_be_imported_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(machine._PARTS, "SDK", ("frx_graph.no_such_part",))
    broken, whole = machine.check_parts()
    assert (broken.name, broken.status, whole.status) == ("SDK", Status.ERROR, Status.OK)
    assert "no_such_part" in broken.value


def test_peaks_name_their_kernel_and_the_load_they_were_measured_under(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = DeviceProfile("cpu", "a CPU", 2e10, {torch.float32: 4e11}, 64, {torch.float32: "aten.convolution"})
    monkeypatch.setattr(torch_build, "list_usable_devices", lambda: ("cpu",))
    for under_load in (False, True):
        loaded = dataclasses.replace(profile, under_load=under_load)
        monkeypatch.setattr(torch_build, "get_device_profile", lambda *_args, loaded=loaded, **_kwargs: loaded)
        found = run("_check_calibration")
        assert found.value.startswith("20.0 GB/s; float32 400 GFLOP/s by aten.convolution")
        assert ("measured under load" in found.value) is under_load


@pytest.mark.parametrize(
    ("allocation", "expected"),
    [
        (Allocation.DEFAULT, "glibc, gives freed memory back to the kernel; 7 page faults to reuse a block of 40 MiB"),
        (Allocation.POOLED, "glibc, keeps freed memory; 7 page faults"),
        (Allocation.CHOSEN, "chosen by the environment: jemalloc; 7 page faults"),
        (Allocation.UNKNOWN, "of another C library than glibc; 7 page faults"),
    ],
)
def test_the_allocator(allocation: Allocation, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "read_allocation", lambda: allocation)
    monkeypatch.setattr(torch_build, "find_process_allocator", lambda: "jemalloc")
    monkeypatch.setattr(torch_build, "count_page_faults", lambda call, calls: PageFaults((7,) * calls, 4096))
    (check,) = torch_build._check_allocation()
    assert (check.name, check.status) == ("allocator", Status.OK)
    assert check.value.startswith(expected)


@pytest.mark.parametrize(
    ("distance", "least", "expected", "status"),
    [
        (1.2, None, "no trial has measured it within a day", Status.OK),
        (1.2, 1.1, "and in trials 1.1: its processors are as near as then", Status.OK),
        (2.0, 1.1, "and in trials 1.1: farther than then", Status.WARNING),
    ],
)
def test_processors_of_a_virtual_machine(
    distance: float, least: float | None, expected: str, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_build, "measure_distance", lambda: distance)
    monkeypatch.setattr(torch_build, "read_least_distance", lambda host, processor, threads: least)
    (check,) = torch_build._check_distance()
    assert (check.name, check.status) == ("virtual machine", status)
    assert check.value.endswith(expected)


def test_a_machine_that_no_hypervisor_moves_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "measure_distance", lambda: None)
    assert not list(torch_build._check_distance())


def test_faults_that_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "count_page_faults", lambda call, calls: None)
    (check,) = torch_build._check_allocation()
    assert "page faults are not counted here" in check.value
