"""Detect other programs that used the processors during a measurement; such measurements are not stored."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from frx_graph.measure.machine.control_groups import read_quota_processors, read_waited_seconds
from frx_graph.measure.machine.processor_state import add_siblings, read_cpu_throttling

Clock = Callable[[], float]

DISTURBED_SHARE = 0.2
"""Other programs' share of all processors from which a time is not kept. One busy program on two cores, a share of 0.5,
halved the bandwidth of a calibration (20 against 8 to 13 GB/s on a shared two-core machine)."""


@dataclass(frozen=True, slots=True)
class OthersLoad:
    """Processor time that other programs took, and the total, in seconds of one processor."""

    used: float
    """Can be a little below 0: the system counts in ticks."""
    available: float
    resolution: float
    """Error of `used`: a tick (10 ms on most systems) per processor."""
    waited: bool = False
    """If True, `used` is instead the time for which this program waited for processors, and `available` the time by the
    clock."""

    @property
    def share(self) -> float:
        """Share of all processors."""
        return self.used / self.available if self.available > 0 else 0.0

    @property
    def told(self) -> str:
        """A description for people."""
        percent = f"{100 * self.share:.0f} %"
        if self.waited:
            return f"it waited for processors {percent} of the time, within its quota"
        return f"other programs had {percent} of all processors"


@contextlib.contextmanager
def watch_others_load(
    statistics: Path = Path("/proc/stat"),
    *,
    wall_clock: Clock = time.perf_counter,
    own_clock: Clock = time.process_time,
) -> Iterator[Callable[[], OthersLoad | None]]:
    """Yield a function that returns the processor time of other programs since the start of the block; None if unknown.

    Only the processors that this process may use count, and those that share a core with them.

    Under a quota the function instead returns the time that this program, or another in the same control group, waited.
    Such a program may use all processors of the machine, but only a part of their time, and other programs may use the
    rest.

    The clocks count seconds. `own_clock` counts processor time of this process, and with `get_own_seconds` also that of
    the data loaders' workers.
    """
    allowed = list_usable_processors()
    quota = read_quota_processors()
    if quota is not None and quota < (len(allowed) if allowed else os.cpu_count() or 1):
        yield _watch_waiting(wall_clock)
    else:
        yield _watch_use(None if allowed is None else add_siblings(allowed), statistics, wall_clock, own_clock)


def _watch_use(
    watched: frozenset[int] | None, statistics: Path, wall_clock: Clock, own_clock: Clock
) -> Callable[[], OthersLoad | None]:
    begin = _read_busy_seconds(statistics, watched)
    own, wall = own_clock(), wall_clock()

    def load() -> OthersLoad | None:
        end = _read_busy_seconds(statistics, watched)
        if begin is None or end is None:
            return None
        others = (end - begin) - (own_clock() - own)
        processors = len(watched) if watched else os.cpu_count() or 1
        return OthersLoad(others, (wall_clock() - wall) * processors, processors / os.sysconf("SC_CLK_TCK"))

    return load


def _watch_waiting(wall_clock: Clock) -> Callable[[], OthersLoad | None]:
    begin, held_back = read_waited_seconds(), read_cpu_throttling().cgroup_periods
    wall = wall_clock()

    def load() -> OthersLoad | None:
        end = read_waited_seconds()
        # Waiting for an exhausted quota is not caused by other programs.
        if begin is None or end is None or read_cpu_throttling().cgroup_periods != held_back:
            return None
        return OthersLoad(end - begin, wall_clock() - wall, 0.0, waited=True)

    return load


@contextlib.contextmanager
def watch_disturbance(
    statistics: Path = Path("/proc/stat"),
    *,
    wall_clock: Clock = time.perf_counter,
    own_clock: Clock = time.process_time,
) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True if others used `DISTURBED_SHARE` or more of all processors; False if unknown.

    See `others_load` for the clocks.
    """
    with watch_others_load(statistics, wall_clock=wall_clock, own_clock=own_clock) as load:

        def is_disturbed() -> bool:
            found = load()
            return found is not None and found.used >= DISTURBED_SHARE * found.available

        yield is_disturbed


def get_own_seconds() -> float:
    """Return the processor time in seconds of this process, its finished children, and its running `multiprocessing`
    workers, such as a data loader's; not of the workers' children."""
    running = 0.0
    # Asking for the workers waits for those that have ended, which moves their time to where the system adds it up.
    for worker in multiprocessing.active_children():
        with contextlib.suppress(psutil.Error):
            used = psutil.Process(worker.pid).cpu_times()
            running += used.user + used.system
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system + running


def list_usable_processors(tasks: Path = Path("/proc/self/task")) -> frozenset[int] | None:
    """Return the processors that any thread of this process may use; None for all, or if unknown. An OpenMP that binds
    its threads has left each with its own."""
    found: set[int] = set()
    try:
        for task in tasks.iterdir():
            with contextlib.suppress(ProcessLookupError):  # a thread that has ended meanwhile
                found |= os.sched_getaffinity(int(task.name))
    except (AttributeError, OSError, ValueError):
        return None
    return frozenset(found) if found and len(found) < (os.cpu_count() or 1) else None


def _read_busy_seconds(statistics: Path, watched: frozenset[int] | None) -> float | None:
    """Seconds that these processors, None: all, have been busy together, stolen time included (`man 5 proc_stat`, the
    lines `cpu` and `cpu0`, `cpu1`, ...)."""
    wanted = {"cpu"} if watched is None else {f"cpu{number}" for number in watched}
    found: dict[str, int] = {}
    try:
        for line in statistics.read_text().splitlines():
            label, *ticks = line.split() or [""]
            if label in wanted:
                user, nice, system, _idle, _iowait, irq, softirq, steal = (int(tick) for tick in ticks[:8])
                found[label] = user + nice + system + irq + softirq + steal
    except (OSError, ValueError):
        return None
    return sum(found.values()) / os.sysconf("SC_CLK_TCK") if found.keys() == wanted else None
