"""Measure the page faults of a program's steady calls, and what it costs to avoid them.

At a minor fault the kernel gives the process a page, filled with zeros. A program that reuses its memory has none in
its steady state. `getrusage` counts the faults of all threads. A fault on a huge page counts once, so faults times the
page size is a lower bound of the bytes.
"""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable
from dataclasses import dataclass

COUNTED_CALLS = 11
"""Odd, so that the median is a count. The counts of one process differ between calls."""


@dataclass(frozen=True, slots=True)
class PageFaults:
    """Minor page faults of each of some calls, in order."""

    calls: tuple[int, ...]
    page_bytes: int

    @property
    def per_call(self) -> int:
        """The median: a heap that grows once does not count."""
        return statistics.median_low(self.calls)

    @property
    def bytes_per_call(self) -> int:
        """Bytes that a call faults in, if no page is a huge one."""
        return self.per_call * self.page_bytes


@dataclass(frozen=True, slots=True)
class AllocationCost:
    """Page faults of a program's calls in a fresh process with glibc's own settings, and the same with pooled memory.

    Heaps of processes differ, so some have few faults: `default` is the last of `processes`, which were started until
    one had many.
    `saved_pct` are percentages of the call time that pooled memory saves, one for each pair of processes.
    It is empty if times were not compared, or if other programs disturbed the comparison, as `disturbance` says.
    """

    default: PageFaults
    processes: int = 1
    pooled: PageFaults | None = None
    saved_pct: tuple[float, ...] = ()
    disturbance: str = ""


def read_page_faults() -> int | None:
    """Return the minor faults of this process so far; None if the system does not count them."""
    # A process that runs has faulted in its own code, so zero comes from a system that does not count (some sandboxes).
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt or None


def count_page_faults(call: Callable[[], object], calls: int = COUNTED_CALLS) -> PageFaults | None:
    """Run `call`, which has been warmed up, `calls` times, and return the faults of each; None if they are unknown."""
    counts: list[int] = []
    for _ in range(calls):
        before = read_page_faults()
        call()
        after = read_page_faults()
        if before is None or after is None:
            return None
        counts.append(after - before)
    return PageFaults(tuple(counts), resource.getpagesize())
