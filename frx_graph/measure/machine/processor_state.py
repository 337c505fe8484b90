"""Read clocks, load and throttling of the processors; unknown values are None."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from frx_graph.measure.machine.control_groups import (
    CGROUPS,
    OWN_CGROUP,
    find_own_groups,
    get_available_memory,
    read_number,
    read_numbers,
)

_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class CpuThrottling:
    """Counters of how often the processors have been throttled."""

    thermal_events: int | None
    """Times that a core or package of the allowed processors overheated (`thermal_throttle/core_throttle_count` and
    `package_throttle_count`; Intel only)."""
    cgroup_periods: int | None
    """Periods in which this process's control group, or one above it, had used up its share of processor time
    (`nr_throttled` in `cpu.stat` of cgroup v2)."""
    cgroup_seconds: float | None
    """Seconds that all threads of the control group waited, added up."""


@dataclass(frozen=True, slots=True)
class ProcessorState:
    """All processors at one moment."""

    frequency_mhz: float | None
    """The mean of all processors."""
    frequency_limit_mhz: float | None
    load_average: float | None
    """Threads that ran or were runnable, averaged over the last minute."""
    available_bytes: int | None
    """Memory that this process can still allocate, see `get_available_memory`."""
    throttling: CpuThrottling


def read_processor_state() -> ProcessorState:
    """The processors now."""
    frequency = limit = load = None
    with contextlib.suppress(OSError, NotImplementedError, AttributeError):
        if (told := psutil.cpu_freq()) is not None:
            # psutil gives 0.0 for unknown values.
            frequency, limit = told.current or None, told.max or None
    with contextlib.suppress(OSError, AttributeError):
        load = os.getloadavg()[0]
    return ProcessorState(frequency, limit, load, get_available_memory(), read_cpu_throttling())


def read_cpu_throttling(cpus: Path = _CPUS, cgroups: Path = CGROUPS, own: Path = OWN_CGROUP) -> CpuThrottling:
    """The counters now."""
    events = [
        count
        for file in _find_thermal_files(cpus, frozenset(os.sched_getaffinity(0)))
        if (count := read_number(file)) is not None
    ]
    tables = (read_numbers(file) for file in _find_cpu_files(cgroups, own))
    groups = [numbers for numbers in tables if "nr_throttled" in numbers]
    return CpuThrottling(
        thermal_events=sum(events) if events else None,
        cgroup_periods=sum(numbers["nr_throttled"] for numbers in groups) if groups else None,
        cgroup_seconds=sum(numbers.get("throttled_usec", 0) for numbers in groups) / 1e6 if groups else None,
    )


def describe_throttling_between(begin: CpuThrottling, end: CpuThrottling) -> str | None:
    """Describe what throttled the processors between two readings; None if nothing is known."""
    if _count_growth(begin.thermal_events, end.thermal_events):
        return "a processor got too hot"
    if periods := _count_growth(begin.cgroup_periods, end.cgroup_periods):
        waited = (end.cgroup_seconds or 0.0) - (begin.cgroup_seconds or 0.0)
        times = "once" if periods == 1 else f"{periods} times"
        return f"the control group's processor time was used up {times}, for {waited:.3f} s"
    return None


def _count_growth(before: int | None, now: int | None) -> int:
    return 0 if before is None or now is None else max(0, now - before)


@cache
def _find_thermal_files(cpus: Path, numbers: frozenset[int]) -> tuple[Path, ...]:
    names = ("core_throttle_count", "package_throttle_count")
    files = (cpus / f"cpu{number}" / "thermal_throttle" / name for number in sorted(numbers) for name in names)
    return tuple(file for file in files if file.exists())


@cache
def _find_cpu_files(cgroups: Path, own: Path) -> tuple[Path, ...]:
    return tuple(file for group in find_own_groups(cgroups, own) if (file := group / "cpu.stat").exists())


@cache
def add_siblings(processors: frozenset[int], cpus: Path = _CPUS) -> frozenset[int]:
    """Return these processors, and those that share a core with one of them (`topology/thread_siblings_list`)."""
    return processors.union(*(read_siblings(number, cpus) for number in processors))


def read_siblings(number: int, cpus: Path = _CPUS) -> frozenset[int]:
    """Return the processors that share this one's core, itself included; itself alone if unknown."""
    found = set()
    try:
        for part in (cpus / f"cpu{number}" / "topology" / "thread_siblings_list").read_text().split(","):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        return frozenset({number})
    return frozenset(found)
