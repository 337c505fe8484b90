"""Read clocks, temperature, power and throttling of an NVIDIA device from NVML, the driver's library.

Without a driver, library or device all values are None, and so is each figure that a device does not report.

NVML gives the reasons for low clocks as a set ("NvmlClocksEventReasons" in its reference). The reasons that lower
clocks independently of the program count as throttling:

- `HwSlowdown`, clocks halved or less: too hot, a power brake, or power that rose too fast. NVML may also report it on a
  change of clocks; then a sound block is run again.
- `HwThermalSlowdown` and `HwPowerBrakeSlowdown`, which name the cause.
- `SwThermalSlowdown`: the driver keeps the device, or its memory, under its highest temperature.

These reasons do not count:

- `GpuIdle`, `ApplicationsClocksSetting`, `DisplayClockSetting` and `SyncBoost`: nothing runs, or the user has chosen
  the clocks, for both compared programs.
- `BoardLimit` and `Reliability`, which bound every boost.
- `SwPowerCap`, clocks chosen to stay within the power limit. A program of large matrix products always runs like that,
  and the power is part of the speed.

All active reasons are recorded. NVBench instead looks at the clock: it discards samples below a threshold, by default
75 % of the device's own clock.

Reasons describe one moment. Newer drivers also count the time that each has been active
(`NVML_FI_DEV_CLOCKS_EVENT_REASON_*`), which shows reasons that came and went between two readings.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

_REASONS: Final = (
    "GpuIdle",
    "ApplicationsClocksSetting",
    "SwPowerCap",
    "HwSlowdown",
    "SyncBoost",
    "SwThermalSlowdown",
    "HwThermalSlowdown",
    "HwPowerBrakeSlowdown",
    "DisplayClockSetting",
    "BoardLimit",
    "Reliability",
)
THROTTLING: Final = frozenset({"HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"})
_COUNTERS: Final = {
    "SwThermalSlowdown": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "HwThermalSlowdown": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "HwPowerBrakeSlowdown": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}


@dataclass(frozen=True, slots=True)
class DeviceState:
    """State of a device at one moment; None for unknown values."""

    sm_clock_mhz: int | None
    sm_clock_limit_mhz: int | None
    """The highest that it can have."""
    memory_clock_mhz: int | None
    temperature_celsius: int | None
    power_watts: float | None
    power_limit_watts: float | None
    utilization_percent: int | None
    """Share of the last sampling period (1/6 to 1 s) in which any kernel ran."""
    clock_reasons: tuple[str, ...] | None
    """NVML's reasons for clocks that are not higher: those in `THROTTLING`, and all others."""


@dataclass(frozen=True, slots=True)
class ThrottleReading:
    """Reasons that throttle a device now, and how long each has throttled it since its driver was loaded."""

    active: frozenset[str]
    counters: Mapping[str, int]
    """Counters that only grow; empty if the driver does not count."""


def get_throttling_between(begin: ThrottleReading, end: ThrottleReading) -> tuple[str, ...]:
    """Return the reasons that throttled a device between two readings, in alphabetical order."""
    counted = {name for name, count in end.counters.items() if count > begin.counters.get(name, count)}
    return tuple(sorted(begin.active | end.active | counted))


@dataclass(frozen=True)
class NvidiaDevice:
    """A device as NVML knows it."""

    nvml: ModuleType = field(repr=False)
    handle: Any = field(repr=False)

    def read_driver(self) -> str | None:
        """Return the version of the driver."""
        try:
            found = self.nvml.nvmlSystemGetDriverVersion()
        except (self.nvml.NVMLError, AttributeError):
            return None
        return found.decode() if isinstance(found, bytes) else str(found)

    def read_state(self) -> DeviceState:
        """Read clocks, power and load, with about a dozen calls into the driver."""
        ask = self._ask
        power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
        return DeviceState(
            sm_clock_mhz=ask("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
            sm_clock_limit_mhz=ask("nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
            memory_clock_mhz=ask("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM"),
            temperature_celsius=ask("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
            power_watts=None if power is None else power / 1000,
            power_limit_watts=None if limit is None else limit / 1000,
            utilization_percent=getattr(ask("nvmlDeviceGetUtilizationRates"), "gpu", None),
            clock_reasons=self._read_reasons(),
        )

    def read_throttling(self) -> ThrottleReading:
        """Read the reasons for throttling, with two calls into the driver."""
        return ThrottleReading(THROTTLING.intersection(self._read_reasons() or ()), self._read_counters())

    def read_others_share(self, since_microseconds: int, ours: Collection[int]) -> float | None:
        """Return the share of the device that processes other than this one and `ours` (process ids) have used since a
        moment (of `time.time()`).

        None if unknown: on a partitioned device (MIG), and in a container with a separate PID namespace, where NVML's
        ids differ from those inside. NVML samples once in 1/6 to 1 s.
        """
        nvml, mine = self.nvml, os.getpid()
        if mine not in {process.pid for process in self._ask("nvmlDeviceGetComputeRunningProcesses") or ()}:
            return None
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self.handle, since_microseconds)
        except nvml.NVMLError as error:
            # No process has used it since then.
            return 0.0 if error.value == nvml.NVML_ERROR_NOT_FOUND else None
        percent: dict[int, int] = {}
        for sample in samples:
            # Without recent use the driver leaves entries of no process or of no time as they were.
            if sample.pid and sample.timeStamp > since_microseconds and sample.smUtil <= 100:
                percent[sample.pid] = max(percent.get(sample.pid, 0), sample.smUtil)
        return min(1.0, sum(used for pid, used in percent.items() if pid != mine and pid not in ours) / 100)

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Return None for what a device, its driver, or this version of the library does not support. Arguments that
        are text name constants of the library."""
        try:
            given = (getattr(self.nvml, each) if isinstance(each, str) else each for each in arguments)
            return getattr(self.nvml, function)(self.handle, *given)
        except (self.nvml.NVMLError, AttributeError):
            return None

    def _read_reasons(self) -> tuple[str, ...] | None:
        # The same function and constants under the names that they had before CUDA 12.2.
        mask = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:
            mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if mask is None else tuple(name for name in _REASONS if mask & self._get_reason_bit(name))

    def _get_reason_bit(self, reason: str) -> int:
        old = getattr(self.nvml, f"nvmlClocksThrottleReason{reason}", 0)
        return int(getattr(self.nvml, f"nvmlClocksEventReason{reason}", old))

    def _read_counters(self) -> dict[str, int]:
        known = {name: getattr(self.nvml, field) for name, field in _COUNTERS.items() if hasattr(self.nvml, field)}
        values = self._ask("nvmlDeviceGetFieldValues", list(known.values())) if known else None
        if not values:
            return {}
        return {
            name: value.value.ullVal
            for name, value in zip(known, values, strict=True)
            if value.nvmlReturn == self.nvml.NVML_SUCCESS
        }


def load_nvml() -> ModuleType | None:
    """Return NVML, initialised; None if its library or driver is missing or unusable."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - with a broken library or driver, the figures are unknown
        return None
    return nvml


def list_gpu_names(nvml: ModuleType | None = None, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the names of the GPUs in the order of the bus; none without a driver, its library or a device, or if
    `CUDA_VISIBLE_DEVICES` hides them all."""
    if environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return ()
    nvml = nvml or load_nvml()
    if nvml is None:
        return ()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        names = [nvml.nvmlDeviceGetName(handle) for handle in handles]
    except nvml.NVMLError:
        return ()
    return tuple(name.decode() if isinstance(name, bytes) else name for name in names)
