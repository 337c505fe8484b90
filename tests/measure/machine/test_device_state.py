"""An NVIDIA device as NVML shows it: a module in its place, with the real one's constants and errors."""

from __future__ import annotations

import importlib
import os
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from frx_graph.measure.machine import device_state, nvml_device
from frx_graph.measure.machine.device_state import (
    DeviceState,
    NvidiaDevice,
    ThrottleReading,
    get_throttling_between,
    list_gpu_names,
)
from frx_graph.measure.machine.nvml_device import find_nvidia_device

UNKNOWN = DeviceState(None, None, None, None, None, None, None, None)
CONSTANTS = ("NVML_", "nvmlClocks")
IDLE = pynvml.nvmlClocksEventReasonGpuIdle
HEAT = pynvml.nvmlClocksEventReasonSwThermalSlowdown
HEAT_FIELD = pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN


class FakeNvml(ModuleType):
    """Every function that is not given a value says that it is not supported."""

    def __init__(self, **answers: Any) -> None:
        super().__init__("fake_nvml")
        self.NVMLError = pynvml.NVMLError
        for name in dir(pynvml):
            if name.startswith(CONSTANTS):
                setattr(self, name, getattr(pynvml, name))
        for name in (name for name in dir(pynvml) if name.startswith(("nvmlDevice", "nvmlSystem", "nvmlInit"))):
            setattr(self, name, self._function(answers.pop(name, pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))))
        assert not answers, f"{answers} is in no pynvml"

    @staticmethod
    def _function(answer: Any) -> Any:
        def function(*arguments: Any) -> Any:
            given = answer(*arguments) if callable(answer) else answer
            if isinstance(given, Exception):
                raise given
            return given

        return function


def device(**answers: Any) -> NvidiaDevice:
    return NvidiaDevice(FakeNvml(**answers), "handle")


def fields(**counts: int) -> Any:
    """What `nvmlDeviceGetFieldValues` gives: a value or an error for each field asked for."""

    def answer(_: object, numbers: list[int]) -> list[SimpleNamespace]:
        known = {getattr(pynvml, f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}"): count for name, count in counts.items()}
        return [
            SimpleNamespace(
                nvmlReturn=pynvml.NVML_SUCCESS if number in known else pynvml.NVML_ERROR_NOT_SUPPORTED,
                value=SimpleNamespace(ullVal=known.get(number, 0)),
            )
            for number in numbers
        ]

    return answer


def test_a_whole_state() -> None:
    clocks = {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 3201}
    state = device(
        nvmlDeviceGetClockInfo=lambda _, kind: clocks[kind],
        nvmlDeviceGetMaxClockInfo=1980,
        nvmlDeviceGetTemperature=lambda _, sensor: {pynvml.NVML_TEMPERATURE_GPU: 41}[sensor],
        nvmlDeviceGetPowerUsage=123_450,
        nvmlDeviceGetEnforcedPowerLimit=700_000,
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=97, memory=12),
        nvmlDeviceGetCurrentClocksEventReasons=pynvml.nvmlClocksEventReasonSwPowerCap | HEAT,
    ).read_state()
    assert state == DeviceState(1755, 1980, 3201, 41, 123.45, 700.0, 97, ("SwPowerCap", "SwThermalSlowdown"))


def test_unsupported_queries_are_unknown() -> None:
    nothing = device()
    assert nothing.read_state() == UNKNOWN
    assert nothing.read_driver() is None
    assert nothing.read_throttling() == ThrottleReading(frozenset(), {})
    assert nothing.read_others_share(0, ()) is None


def test_a_library_without_a_function() -> None:
    old = FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=HEAT)
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"):
        delattr(old, name)
    for name in [name for name in vars(old) if "EventReason" in name or "EVENT_REASON" in name]:
        delattr(old, name)
    found = NvidiaDevice(old, "handle")
    assert found.read_state().clock_reasons == ("SwThermalSlowdown",)
    assert found.read_state().power_watts is None
    assert found.read_throttling().active == {"SwThermalSlowdown"}


@pytest.mark.parametrize("reason", ["HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"])
def test_reasons_that_throttle(reason: str) -> None:
    quiet = device(nvmlDeviceGetCurrentClocksEventReasons=IDLE).read_throttling()
    mask = IDLE | getattr(pynvml, f"nvmlClocksThrottleReason{reason}")
    slowed = device(nvmlDeviceGetCurrentClocksEventReasons=mask).read_throttling()
    assert get_throttling_between(quiet, slowed) == get_throttling_between(slowed, quiet) == (reason,)


@pytest.mark.parametrize(
    "reason",
    [
        "None",
        "GpuIdle",
        "ApplicationsClocksSetting",
        "SwPowerCap",
        "SyncBoost",
        "DisplayClockSetting",
        "BoardLimit",
        "Reliability",
    ],
)
def test_reasons_that_do_not(reason: str) -> None:
    seen = device(nvmlDeviceGetCurrentClocksEventReasons=getattr(pynvml, f"nvmlClocksThrottleReason{reason}"))
    assert get_throttling_between(seen.read_throttling(), seen.read_throttling()) == ()
    assert seen.read_state().clock_reasons == (() if reason == "None" else (reason,))


def test_throttling_that_has_passed_is_counted() -> None:
    before = device(nvmlDeviceGetFieldValues=fields(SW_THERM_SLOWDOWN=5, HW_THERM_SLOWDOWN=7)).read_throttling()
    after = device(nvmlDeviceGetFieldValues=fields(SW_THERM_SLOWDOWN=6, HW_THERM_SLOWDOWN=7)).read_throttling()
    assert before.counters == {"SwThermalSlowdown": 5, "HwThermalSlowdown": 7}
    assert get_throttling_between(before, after) == ("SwThermalSlowdown",)
    assert get_throttling_between(after, after) == ()
    # A counter that could not be read before says nothing.
    assert get_throttling_between(device().read_throttling(), after) == ()


def others(samples: Any, ours: tuple[int, ...] = (), running: Any = None) -> float | None:
    mine = [SimpleNamespace(pid=os.getpid())]
    found = device(
        nvmlDeviceGetComputeRunningProcesses=mine if running is None else running,
        nvmlDeviceGetProcessUtilization=samples,
    )
    return found.read_others_share(1000, ours)


def sample(pid: int, percent: int, time_stamp: int = 2000) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=time_stamp, memUtil=0)


def test_the_share_of_others() -> None:
    mine = sample(os.getpid(), 90)
    assert others([mine]) == 0.0
    assert others([mine, sample(12, 30), sample(12, 20), sample(13, 5)]) == pytest.approx(0.35)
    assert others([mine, sample(12, 30), sample(13, 5)], ours=(12,)) == pytest.approx(0.05)
    assert others([sample(12, 80), sample(13, 80)]) == 1.0


def test_samples_without_information_are_ignored() -> None:
    assert others([sample(12, 30, time_stamp=1000), sample(0, 30), sample(13, 4_000_000_000)]) == 0.0
    assert others(pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)) == 0.0
    assert others(pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)) is None


def test_process_ids_of_another_namespace() -> None:
    assert others([sample(12, 30)], running=[SimpleNamespace(pid=os.getpid() + 1)]) is None
    assert others([sample(12, 30)], running=[]) is None


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch numbers them: the second is the one that CUDA_VISIBLE_DEVICES names second, wherever it is plugged."""
    properties = [
        SimpleNamespace(uuid="aaaa-1", pci_domain_id=0, pci_bus_id=0x41, pci_device_id=0),
        SimpleNamespace(uuid="bbbb-2", pci_domain_id=0, pci_bus_id=0x1A, pci_device_id=1),
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties[device.index or 0])


def only(known: str) -> Any:
    return lambda name: name if name == known else pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)


@pytest.mark.usefixtures("two_devices")
def test_a_device_is_found_by_uuid_then_by_address() -> None:
    second = torch.device("cuda", 1)
    for function, name in [
        ("nvmlDeviceGetHandleByUUID", "GPU-bbbb-2"),
        ("nvmlDeviceGetHandleByUUID", "MIG-bbbb-2"),
        ("nvmlDeviceGetHandleByPciBusId", "00000000:1a:01.0"),
    ]:
        found = find_nvidia_device(second, FakeNvml(**{function: only(name)}))
        assert found is not None
        assert found.handle == name
        assert find_nvidia_device(torch.device("cuda", 0), FakeNvml(**{function: only(name)})) is None


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("wrong", ["no driver", "no library"])
def test_no_driver_and_no_library(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    if wrong == "no driver":
        error = pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        monkeypatch.setattr(importlib, "import_module", lambda _: FakeNvml(nvmlInit=error))
    else:

        def missing(name: str) -> ModuleType:
            raise ModuleNotFoundError(name)

        monkeypatch.setattr(importlib, "import_module", missing)
    assert find_nvidia_device(torch.device("cuda")) is None


@pytest.mark.usefixtures("two_devices")
def test_the_library_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    found = FakeNvml(nvmlInit=None, nvmlDeviceGetHandleByUUID="handle", nvmlSystemGetDriverVersion=b"570.1")
    monkeypatch.setattr(importlib, "import_module", {"pynvml": found}.__getitem__)
    seen = find_nvidia_device(torch.device("cuda"))
    assert seen is not None
    assert seen.read_driver() == "570.1"


def test_cpu_is_not_an_nvidia_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_device, "load_nvml", lambda: pytest.fail("the driver was asked"))
    assert find_nvidia_device(torch.device("cpu")) is None


def test_the_real_library_has_all_the_names() -> None:
    for name in device_state._REASONS:
        assert hasattr(pynvml, f"nvmlClocksThrottleReason{name}")
    assert set(device_state._REASONS) >= device_state.THROTTLING
    for constant in device_state._COUNTERS.values():
        assert isinstance(getattr(pynvml, constant), int)
    assert HEAT_FIELD == 269  # nvml.h


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_real_device() -> None:
    found = find_nvidia_device(torch.device("cuda"))
    assert found is not None
    assert found.read_driver()
    state = found.read_state()
    assert state.sm_clock_mhz is not None
    assert 0 < state.sm_clock_mhz <= (state.sm_clock_limit_mhz or 10_000)
    assert state.temperature_celsius is not None
    assert 0 < state.temperature_celsius < 120
    assert state.clock_reasons is not None
    x = torch.ones(4096, 4096, device="cuda")
    begin, since = found.read_throttling(), time.time_ns() // 1000
    for _ in range(50):
        x @ x
    torch.cuda.synchronize()
    assert set(get_throttling_between(begin, found.read_throttling())) <= device_state.THROTTLING
    share = found.read_others_share(since, ())
    assert share is None or 0 <= share <= 1


class Driver(ModuleType):
    """NVML that knows devices of these names; fails where it is given an error."""

    NVMLError = pynvml.NVMLError

    def __init__(self, *names: Any, error: int | None = None) -> None:
        super().__init__("driver")
        self._names, self._error = names, error

    def nvmlDeviceGetCount(self) -> int:
        if self._error is not None:
            raise pynvml.NVMLError(self._error)
        return len(self._names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return self._names[handle]


def test_names_in_order() -> None:
    assert list_gpu_names(Driver("NVIDIA H100", b"NVIDIA L4"), {}) == ("NVIDIA H100", "NVIDIA L4")
    assert list_gpu_names(Driver(), {}) == ()


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("-1", 0), ("0", 1), ("GPU-1", 1)])
def test_hidden_ones_are_not_there(visible: str, count: int) -> None:
    assert len(list_gpu_names(Driver("NVIDIA L4"), {"CUDA_VISIBLE_DEVICES": visible})) == count


def test_a_driver_that_fails_has_none() -> None:
    assert list_gpu_names(Driver("NVIDIA L4", error=pynvml.NVML_ERROR_GPU_IS_LOST), {}) == ()


def test_without_a_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_state, "load_nvml", lambda: None)
    assert list_gpu_names(environ={}) == ()
    monkeypatch.setattr(importlib, "import_module", lambda _: (_ for _ in ()).throw(ImportError()))
    assert device_state.load_nvml() is None
