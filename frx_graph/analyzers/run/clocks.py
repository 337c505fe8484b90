"""The events of each process, by time. Processes do not share steps, and a clock that went back divides one in two."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from frx_graph.evidence.run.events import GpuSample, RunEvent, StepEnd, SystemInfo

_OF_NO_PROCESS = (GpuSample, SystemInfo)


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """What one process wrote by one clock, in order of time. `clock` is 0, and one more each time it went back."""

    process: int | None
    clock: int
    events: tuple[RunEvent, ...]


def by_process(events: Sequence[RunEvent]) -> tuple[ProcessEvents, ...]:
    """Those of processes that end steps, in order of appearance. `events` are as they were written."""
    written: dict[int | None, list[RunEvent]] = defaultdict(list)
    for event in events:
        if not isinstance(event, _OF_NO_PROCESS):
            written[event.process].append(event)
    return tuple(
        ProcessEvents(process, clock, tuple(sorted(part, key=lambda event: event.at_ns)))
        for process, here in written.items()
        if any(isinstance(event, StepEnd) for event in here)
        for clock, part in enumerate(_clocks(here))
    )


def _clocks(events: list[RunEvent]) -> list[list[RunEvent]]:
    """Threads write out of order, and so files are sorted by time; but if steps are numbered in the order in which they
    were written, and not in that of time, it is the clock that was set back."""
    ends = [(index, event) for index, event in enumerate(events) if isinstance(event, StepEnd)]
    numbers = [event.step for _, event in ends]
    sorted_numbers = [event.step for _, event in sorted(ends, key=lambda end: end[1].at_ns)]
    if not _rising(numbers) or _rising(sorted_numbers):
        return [events]
    cuts = [0]
    for (before, ended), (after, following) in pairwise(ends):
        if following.at_ns < ended.at_ns:
            cuts.append(next(at for at in range(before + 1, after + 1) if events[at].at_ns < ended.at_ns))
    return [events[begin:end] for begin, end in pairwise([*cuts, len(events)])]


def _rising(numbers: Sequence[int | None]) -> bool:
    known = [number for number in numbers if number is not None]
    return len(known) == len(numbers) and all(one <= other for one, other in pairwise(known))
