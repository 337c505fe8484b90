"""Sample NVIDIA devices through NVML: utilisation, memory, clocks, temperature, power.

The rows match those of `nvidia-smi --query-gpu=... --format=csv,nounits`, except that the time has its zone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from frx_graph.measure.machine.device_state import load_nvml
from frx_graph.runs.collect.sampling import Sampler

HEADER = (
    b"timestamp, index, utilization.gpu [%], utilization.memory [%], memory.used [MiB], memory.total [MiB], "
    b"clocks.current.sm [MHz], clocks.current.memory [MHz], temperature.gpu, power.draw [W]\n"
)


def find_visible_devices(nvml: ModuleType, environ: Mapping[str, str] = os.environ) -> dict[int, Any]:
    """Return handles of the devices that a program sees, by their number in NVML: all, or those in
    `CUDA_VISIBLE_DEVICES`.

    Numbers there are taken for NVML's, as they are with `CUDA_DEVICE_ORDER=PCI_BUS_ID`, and of devices of one kind.
    """
    try:
        handles = {number: nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())}
        named = environ.get("CUDA_VISIBLE_DEVICES")
        if named is None:
            return handles
        visible = {}
        for word in (word.strip() for word in named.split(",")):
            found = [number for number, handle in handles.items() if _matches_device(nvml, word, number, handle)]
            if not found:
                # As in CUDA, a missing device hides all that follow it in the list.
                break
            visible[found[0]] = handles[found[0]]
    except nvml.NVMLError:
        return {}
    return dict(sorted(visible.items()))


def make_device_reader(
    nvml: ModuleType, devices: Mapping[int, Any], now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Callable[[], bytes]:
    """Return a function that gives a row of `HEADER` for each of `devices`."""

    def query(function: str, *arguments: object) -> Any:
        try:
            return getattr(nvml, function)(*arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    def format_device(number: int, handle: Any) -> Sequence[str]:
        busy = query("nvmlDeviceGetUtilizationRates", handle)
        memory = query("nvmlDeviceGetMemoryInfo", handle)
        clocks = [query("nvmlDeviceGetClockInfo", handle, kind) for kind in (nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM)]
        heat = query("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU)
        milliwatts = query("nvmlDeviceGetPowerUsage", handle)
        figures = (
            number,
            None if busy is None else busy.gpu,
            None if busy is None else busy.memory,
            None if memory is None else memory.used >> 20,
            None if memory is None else memory.total >> 20,
            *clocks,
            heat,
            None if milliwatts is None else f"{milliwatts / 1000:.2f}",
        )
        return ["[N/A]" if figure is None else str(figure) for figure in figures]

    def read_rows() -> bytes:
        when = now().isoformat(timespec="microseconds")
        return "".join(f"{', '.join((when, *format_device(*device)))}\n" for device in devices.items()).encode()

    return read_rows


def make_device_sampler(path: Path, interval_seconds: float, environ: Mapping[str, str] = os.environ) -> Sampler | None:
    """Return a sampler of the devices that a program sees, which appends to the file at `path`; None if there are
    none."""
    nvml = load_nvml()
    devices = {} if nvml is None else find_visible_devices(nvml, environ)
    return Sampler(path, interval_seconds, make_device_reader(nvml, devices)) if nvml is not None and devices else None


def _matches_device(nvml: ModuleType, word: str, number: int, handle: Any) -> bool:
    if word.isdecimal():
        return int(word) == number
    uuid = nvml.nvmlDeviceGetUUID(handle)
    # The beginning of one is enough for CUDA, as long as it is one device's.
    return word.startswith("GPU-") and (uuid.decode() if isinstance(uuid, bytes) else uuid).startswith(word)
