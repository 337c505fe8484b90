"""Append samples of a run's processes, and of NVIDIA devices through NVML, to files in the background."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import psutil

from frx_graph.measure.machine.device_state import load_nvml

HOST_HEADER = b"timestamp, processes, cpu [%], memory.rss [MiB]\n"
DEVICE_HEADER = (
    b"timestamp, index, utilization.gpu [%], utilization.memory [%], memory.used [MiB], memory.total [MiB], "
    b"clocks.current.sm [MHz], clocks.current.memory [MHz], temperature.gpu, power.draw [W]\n"
)
"""Rows match those of `nvidia-smi --query-gpu=... --format=csv,nounits`, except that the time has its zone."""
_UNREADABLE = (OSError, psutil.Error)

MOST_BYTES: Final = 64 << 20
"""Size limit of a file of samples: a day of eight devices, once a second, takes 60 MB."""
_MOST_OF_TIME: Final = 0.02
"""Share of a processor that sampling may take. If looking at thousands of processes takes longer, it is done less
often."""
_STOP_SECONDS: Final = 2.0
"""Longest wait for the sampling thread to stop, so that a driver that hangs does not block the run."""


class Sampler:
    """Appends the result of `take` to the file at `path` every `interval_seconds`, and once at the end. `problem` says
    why it ended early."""

    def __init__(self, path: Path, interval_seconds: float, take: Callable[[], bytes]) -> None:
        self._path = path
        self._interval = interval_seconds
        self._take = take
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, name=f"frx-{path.stem}", daemon=True)
        self.problem: str | None = None

    def start(self) -> None:
        """The first sample is taken at once."""
        self._thread.start()

    def stop(self) -> None:
        """Take the last one."""
        if self._thread.ident is None:
            return
        self._stopped.set()
        self._thread.join(_STOP_SECONDS)
        if self._thread.is_alive():
            self.problem = f"{self._path.name} is incomplete: the last sample did not arrive"

    def _sample(self) -> None:
        try:
            with self._path.open("ab", buffering=0) as file:
                self._sample_until_stopped(file)
        except Exception as error:  # noqa: BLE001 - the run continues without samples
            self.problem = f"{self._path.name} is incomplete: {error}"

    def _sample_until_stopped(self, file: FileIO) -> None:
        written = 0
        last = False
        while True:
            begin = time.monotonic()
            rows = self._take()
            took = time.monotonic() - begin
            if written + len(rows) > MOST_BYTES:
                self.problem = f"{self._path.name} ends before the run: it has {MOST_BYTES >> 20} MiB"
                return
            # One write, so that a kill leaves no partial row.
            file.write(rows)
            written += len(rows)
            if last:
                return
            last = self._stopped.wait(max(self._interval - took, took / _MOST_OF_TIME))


def make_host_reader(ancestor: int, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Callable[[], bytes]:
    """Return a function that gives a row of `HOST_HEADER` for the descendants of `ancestor`. Processor time that a
    process uses between the last sample and its end is not counted."""
    root = psutil.Process(ancestor)
    used_before: dict[int, float] = {}
    last: datetime | None = None

    def read_rows() -> bytes:
        nonlocal last
        try:
            processes = root.children(recursive=True)
        except _UNREADABLE:
            return b""
        if not processes:
            return b""
        moment = now()
        memory, used = 0, {}
        for process in processes:
            with contextlib.suppress(*_UNREADABLE), process.oneshot():
                times = process.cpu_times()
                memory += process.memory_info().rss
                used[process.pid] = times.user + times.system
        # A new process, or one with a reused number, has started since the last sample.
        spent = sum(max(seconds - used_before.get(number, 0.0), 0.0) for number, seconds in used.items())
        elapsed = None if last is None else (moment - last).total_seconds()
        percent = f"{100 * spent / elapsed:.1f}" if elapsed is not None and elapsed > 0 else "[N/A]"
        used_before.clear()
        used_before.update(used)
        last = moment
        when = moment.isoformat(timespec="microseconds")
        return f"{when}, {len(used)}, {percent}, {memory / 2**20:.1f}\n".encode()

    return read_rows


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
    """Return a function that gives a row of `DEVICE_HEADER` for each of `devices`."""

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
