"""Name the programs that keep the processors busy, so that people can close them.

`frx_graph.measure.machine.disturbance` decides if a measurement counts. This module tells what used the processors.
Reading all processes takes some milliseconds, so it runs while nothing is measured.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import psutil

from frx_graph.measure.machine.disturbance import (
    DISTURBED_SHARE,
    OthersLoad,
    get_own_seconds,
    list_usable_processors,
    watch_others_load,
)

_NAMED = 5
"""Most programs that are listed."""
_LEAST_PROCESSORS = 0.05
"""Programs that use less are not listed."""
_SHOWN = 2
"""Programs that are named in one line."""
_LEAST_STOLEN = 0.02
"""Share of stolen time from which it is worth a word."""


@dataclass(frozen=True, slots=True)
class BusyProgram:
    """A process that used the processors."""

    pid: int
    name: str
    processors: float
    """Processor seconds per second: 1.0 is one whole processor."""


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """The use of the processors by other programs for some seconds."""

    seconds: float
    processors: int
    """The number that this process may use."""
    share: float | None
    """Share of all processors that others used, or of the time that this program waited. None if unknown."""
    waited: bool
    """True if `share` counts waiting, as under a quota."""
    load_average: float | None
    """Threads that ran or were runnable, averaged over the last minute."""
    stolen: float | None
    """Share of the processors' time that the hypervisor gave to other machines."""
    programs: tuple[BusyProgram, ...]
    """The busiest, without this process and its children."""

    @property
    def is_busy(self) -> bool:
        """True if a measurement at that time would be void."""
        return self.share is not None and self.share >= DISTURBED_SHARE


ReadLoad = Callable[[], MachineLoad | None]
WatchLoad = Callable[[], contextlib.AbstractContextManager[ReadLoad]]
"""A context manager that yields a function, which returns the load since the start of the block."""
_Times = Mapping[int, tuple[str, float]]
"""Names and processor seconds of processes, by pid. A worker of the kernel changes its name from task to task."""


@contextlib.contextmanager
def watch_machine_load(clock: Callable[[], float] = time.perf_counter) -> Iterator[ReadLoad]:
    """Yield a function that returns the load since the start of the block; None if no time has passed."""
    began = clock()
    used, (stolen, total) = _read_programs(), _read_stolen()
    with watch_others_load(own_clock=get_own_seconds) as others:

        def read() -> MachineLoad | None:
            seconds = clock() - began
            if seconds <= 0:
                return None
            found = others()
            stolen_now, total_now = _read_stolen()
            return MachineLoad(
                seconds=seconds,
                processors=len(list_usable_processors() or range(os.cpu_count() or 1)),
                share=_get_share(found),
                waited=found is not None and found.waited,
                load_average=_read_load_average(),
                stolen=(stolen_now - stolen) / (total_now - total) if total_now > total else None,
                programs=_rank_programs(used, _read_programs(), seconds),
            )

        yield read


def sample_machine_load(seconds: float) -> MachineLoad | None:
    """Wait for `seconds`, and return the load meanwhile."""
    with watch_machine_load() as read:
        time.sleep(seconds)
        return read()


def describe_load(load: MachineLoad, *, named: int = _SHOWN) -> str:
    """Describe the load in one line: the busiest programs, the load average, and stolen time."""
    shown = [f"{one.name} (pid {one.pid}) uses {one.processors:.1f}" for one in load.programs[:named]]
    parts = [f"{', '.join(shown)} of {load.processors} processors"] if shown else []
    if load.share is not None and not shown:
        percent = f"{100 * load.share:.0f} %"
        parts.append(
            f"programs that cannot be seen from here make it wait {percent} of the time"
            if load.waited
            else f"programs that cannot be seen from here use {percent} of the processors"
        )
    if load.load_average is not None:
        parts.append(f"load {load.load_average:.1f}")
    if load.stolen is not None and load.stolen >= _LEAST_STOLEN:
        parts.append(f"{100 * load.stolen:.0f} % stolen by other virtual machines")
    return ", ".join(parts)


def _get_share(found: OthersLoad | None) -> float | None:
    if found is None:
        return None
    # A short time is made of a few ticks, and so is the error.
    return found.share if found.used > found.resolution else 0.0


def _read_load_average() -> float | None:
    with contextlib.suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return None


def _read_stolen() -> tuple[float, float]:
    """Return the stolen seconds, and the seconds of all processors together; zeros if unknown."""
    try:
        times = psutil.cpu_times()
    except (OSError, psutil.Error):
        return 0.0, 0.0
    # Guests are counted as user time, too.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return getattr(times, "steal", 0.0), total


def _read_programs() -> _Times:
    """Return the processor seconds of all visible processes but this one and its children."""
    own = {os.getpid()}
    with contextlib.suppress(psutil.Error):
        own |= {child.pid for child in psutil.Process().children(recursive=True)}
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if process.pid not in own and times is not None:
            found[process.pid] = process.info["name"] or "?", times.user + times.system
    return found


def _rank_programs(before: _Times, after: _Times, seconds: float) -> tuple[BusyProgram, ...]:
    # A process that was not there before has used all its time since.
    rates = [
        BusyProgram(pid, name, (used - before.get(pid, ("", 0.0))[1]) / seconds) for pid, (name, used) in after.items()
    ]
    busy = sorted((one for one in rates if one.processors >= _LEAST_PROCESSORS), key=lambda one: -one.processors)
    return tuple(busy[:_NAMED])
