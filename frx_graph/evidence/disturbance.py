"""Whether other programs held the processors during a measurement: what a busy machine measured is not remembered."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Clock = Callable[[], float]

DISTURBED_SHARE = 0.2
"""Other programs' share of all processors from which a time is not worth keeping. One busy program on two cores, a
share of 0.5, made a calibration see half the bandwidth (20 against 8 to 13 GB/s on a shared two-core machine)."""


@contextlib.contextmanager
def disturbance(
    statistics: Path = Path("/proc/stat"),
    *,
    wall_clock: Clock = time.perf_counter,
    own_clock: Clock = time.process_time,
) -> Iterator[Callable[[], bool]]:
    """Whether others took `DISTURBED_SHARE` or more of all processors inside; False where the system does not tell.

    The clocks count seconds: `own_clock` those of processor time that this process has used.
    """
    begin = _busy_seconds(statistics)
    own, wall = own_clock(), wall_clock()

    def disturbed() -> bool:
        end = _busy_seconds(statistics)
        if begin is None or end is None:
            return False
        others = (end - begin) - (own_clock() - own)
        available = (wall_clock() - wall) * (os.cpu_count() or 1)
        return others >= DISTURBED_SHARE * available

    yield disturbed


def _busy_seconds(statistics: Path) -> float | None:
    """Seconds that all processors together have been busy, stolen time included (`man 5 proc_stat`, the line `cpu`)."""
    try:
        label, *ticks = statistics.read_text().partition("\n")[0].split()
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(tick) for tick in ticks[:8])
    except (OSError, ValueError):
        return None
    if label != "cpu":
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
