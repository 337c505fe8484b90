"""Time the steps of a run from batch to batch: from the end of one to the end of the next in the same process.

In a loop over a DataLoader, the wait for a batch comes before the step that the program marks, so a time inside the
step would miss it. Processes do not share steps, and a clock that was set back divides one in two.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from types import MappingProxyType

from frx_graph.evidence.run.events import (
    CopySpan,
    GpuSample,
    LoaderMark,
    LoaderWait,
    PhaseSpan,
    RunEvent,
    RunWarning,
    StepEnd,
    StepStart,
    SyncWait,
    SystemInfo,
)
from frx_graph.evidence.trace.intervals import Span, merge_spans, subtract_spans


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """Events of one process by one clock, in order of time. `clock` is 0, plus one for each time it was set back."""

    process: int | None
    clock: int
    events: tuple[RunEvent, ...]


def group_by_process(events: Sequence[RunEvent]) -> tuple[ProcessEvents, ...]:
    """Group the events of processes that end steps, in order of appearance. `events` are in writing order."""
    written: dict[int | None, list[RunEvent]] = defaultdict(list)
    for event in events:
        if not isinstance(event, (GpuSample, SystemInfo)):
            written[event.process].append(event)
    return tuple(
        ProcessEvents(process, clock, tuple(sorted(part, key=lambda event: event.at_ns)))
        for process, here in written.items()
        if any(isinstance(event, StepEnd) for event in here)
        for clock, part in enumerate(_split_clocks(here))
    )


def _split_clocks(events: list[RunEvent]) -> list[list[RunEvent]]:
    """Split events where the clock was set back: steps are numbered in writing order, though threads may write late."""
    ends = [(index, event) for index, event in enumerate(events) if isinstance(event, StepEnd)]
    numbers = [event.step for _, event in ends]
    sorted_numbers = [event.step for _, event in sorted(ends, key=lambda end: end[1].at_ns)]
    if not _is_rising(numbers) or _is_rising(sorted_numbers):
        return [events]
    cuts = [0]
    for (before, ended), (after, following) in pairwise(ends):
        if following.at_ns < ended.at_ns:
            cuts.append(next(at for at in range(before + 1, after + 1) if events[at].at_ns < ended.at_ns))
    return [events[begin:end] for begin, end in pairwise([*cuts, len(events)])]


def _is_rising(numbers: Sequence[int | None]) -> bool:
    known = [number for number in numbers if number is not None]
    return len(known) == len(numbers) and all(one <= other for one, other in pairwise(known))


SKIP_FIRST = 5
"""Steps of a process in which it compiles, tunes, starts workers and fills queues; a trial warms up for as many."""
SKIP_AT_MOST = 5
"""At most one of this many steps may be skipped, so that most of a short run is used."""
LAST = 1000
"""For a long run, its current state: the last steps of each process."""


class Scope(enum.StrEnum):
    """Values of `--scope`."""

    RUN = "run"
    STEADY_STATE = "steady_state"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Selector:
    """Selection of each process's steady state: `skip_first_n` steps are skipped, at most a fifth of them, and the
    `last_k` others used."""

    skip_first_n: int = SKIP_FIRST
    last_k: int = LAST

    def select(self, steps: Sequence[RunStep]) -> tuple[RunStep, ...]:
        """Return the steady-state steps from steps in order of time."""
        return tuple(
            step
            for here in group_steps(steps).values()
            for step in here[min(self.skip_first_n, len(here) // SKIP_AT_MOST) :][-self.last_k :]
        )


def group_steps(steps: Sequence[RunStep]) -> dict[int | None, list[RunStep]]:
    """Return the steps of each process."""
    found: dict[int | None, list[RunStep]] = defaultdict(list)
    for step in steps:
        found[step.process].append(step)
    return found


class Activity(enum.StrEnum):
    """Parts of a step's time."""

    LOADER = "loader_wait"
    H2D = "h2d"
    D2H = "d2h"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    SYNC = "sync"
    OTHER = "other"
    """Parts of a step, and copies, without a place above."""


_ADJACENT_NS = 1_000_000
"""Waits for a loader with less time between them are one: Python takes some microseconds from one call to the next."""
_PHASES = {"forward": Activity.FORWARD, "backward": Activity.BACKWARD, "optimizer": Activity.OPTIMIZER}
_COPIES = {"h2d": Activity.H2D, "d2h": Activity.D2H}
_COMPUTING = (Activity.FORWARD, Activity.BACKWARD, Activity.OPTIMIZER)


@dataclass(frozen=True, slots=True)
class RunStep:
    """One step. It lasts from `begin_ns`, the end of the step before, to `end_ns`. The program marked it from
    `start_ns`, None if unknown.

    `times` has an entry for each activity that the process recorded, 0 if not in this step; activities may overlap.
    `restart_ns` is the part of the wait for a batch in which a loader began to iterate. `unexplained_ns` is the time
    that no activity covers; `between_ns` of it is before the mark. A step that is not `whole`
    lacks events since the step before, perhaps whole steps, so its times are not used.
    """

    process: int | None
    clock: int
    number: int | None
    kind: str | None
    failed: bool
    whole: bool
    begin_ns: int
    start_ns: int | None
    end_ns: int
    times: Mapping[Activity, int]
    restart_ns: int
    unexplained_ns: int
    between_ns: int | None
    loss: float | None
    layout: int | None

    @property
    def wall_ns(self) -> int:
        """Return the time from batch to batch."""
        return self.end_ns - self.begin_ns


def extract_steps(record: ProcessEvents) -> tuple[RunStep, ...]:
    """Return all steps of a process that ended, in order of time. Nested steps are part of the outer one, and repeated
    events count once."""
    ends = list(dict.fromkeys(event for event in record.events if isinstance(event, StepEnd) and not event.depth))
    if not ends:
        return ()
    spans = _collect_spans(record.events)
    gaps = _find_gaps(record.events)
    starts = _find_starts(record.events, ends)
    begins = [_find_first_begin(ends[0], starts[0], spans), *(end.at_ns for end in ends[:-1])]
    windows = list(zip(begins, (end.at_ns for end in ends), strict=True))
    lengths = {activity: measure_within(windows, here) for activity, here in spans.items()}
    known = merge_spans(span for here in spans.values() for span in here)
    explained = measure_within(windows, known)
    # Overlapping steps, or steps marked before the last one ended, have no time between them.
    before = [
        (begin, begin if start is None else max(begin, start)) for begin, start in zip(begins, starts, strict=True)
    ]
    explained_before = measure_within(before, known)
    restarts = measure_within(windows, merge_spans(_list_restarts(record.events)))
    return tuple(
        RunStep(
            process=record.process,
            clock=record.clock,
            number=end.step,
            kind=end.kind,
            failed=end.failed,
            # A missing event may belong to the step.
            whole=not any(since < end.at_ns and (since >= begin or until > begin) for since, until in gaps),
            begin_ns=begin,
            start_ns=start,
            end_ns=end.at_ns,
            times=MappingProxyType({activity: here[index] for activity, here in lengths.items()}),
            restart_ns=restarts[index],
            unexplained_ns=end.at_ns - begin - explained[index],
            between_ns=None if start is None else before[index][1] - begin - explained_before[index],
            loss=end.loss,
            layout=end.batch_layout,
        )
        for index, (end, start, begin) in enumerate(zip(ends, starts, begins, strict=True))
    )


def count_unfinished_steps(record: ProcessEvents) -> int:
    """Count steps that began but did not end. Numbers may restart; a dropped event may have been the end."""
    lost = max((until for _, until in _find_gaps(record.events)), default=-1)
    marks = {event for event in record.events if isinstance(event, (StepStart, StepEnd)) and event.at_ns >= lost}
    begun = Counter(event.step for event in marks if isinstance(event, StepStart))
    ended = Counter(event.step for event in marks if isinstance(event, StepEnd))
    return (begun - ended).total()


def measure_within(windows: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """Return the time of the merged spans in each of the windows, which are in order and do not overlap."""
    found = []
    for begin, end in windows:
        # The spans that end within the window or later, up to the last that begins in it.
        first = bisect_right(spans, begin, key=itemgetter(1))
        last = bisect_left(spans, end, first, key=itemgetter(0))
        found.append(sum(min(end, stop) - max(begin, start) for start, stop in spans[first:last]))
    return found


def _find_gaps(events: Iterable[RunEvent]) -> list[Span]:
    """Return the times with missing events, from the first of them to the last, if known."""
    return [
        (event.at_ns, max(event.at_ns, event.until_ns or 0))
        for event in events
        if isinstance(event, RunWarning) and event.dropped is not None
    ]


def _collect_spans(events: Iterable[RunEvent]) -> dict[Activity, tuple[Span, ...]]:
    gathered: dict[Activity, list[Span]] = defaultdict(list)
    for event in events:
        match event:
            case LoaderWait():
                activity = Activity.LOADER
            case LoaderMark():
                if event.duration_ns is None:
                    continue
                gathered[Activity.LOADER].append((event.at_ns - event.duration_ns, event.at_ns))
                continue
            case CopySpan(direction=direction):
                activity = _COPIES.get(direction.lower(), Activity.OTHER)
            case SyncWait():
                activity = Activity.SYNC
            case PhaseSpan(phase=phase):
                activity = _PHASES.get(phase.lower(), Activity.OTHER)
            case _:
                continue
        gathered[activity].append((event.at_ns - event.duration_ns, event.at_ns))
    spans = {activity: merge_spans(here) for activity, here in gathered.items()}
    if Activity.LOADER in spans:
        # A thread that waits for a batch while another computes delays nothing.
        computing = merge_spans(span for activity in _COMPUTING for span in spans.get(activity, ()))
        spans[Activity.LOADER] = subtract_spans(spans[Activity.LOADER], computing)
    return spans


def _list_restarts(events: Iterable[RunEvent]) -> list[Span]:
    """Return the times in which a loader began to iterate."""
    begins = (event for event in events if isinstance(event, LoaderMark) and event.begins)
    return [(event.at_ns - event.duration_ns, event.at_ns) for event in begins if event.duration_ns is not None]


def _find_starts(events: Iterable[RunEvent], ends: Sequence[StepEnd]) -> list[int | None]:
    """Return the start of each step, from its duration, or else from the last event that gives one."""
    marked: dict[int | None, list[int]] = defaultdict(list)
    for event in events:
        if isinstance(event, StepStart):
            marked[event.step].append(event.at_ns)
    return [
        max((at for at in marked.get(end.step, ()) if at <= end.at_ns), default=None)
        if end.duration_ns is None
        else end.at_ns - end.duration_ns
        for end in ends
    ]


def _find_first_begin(end: StepEnd, start: int | None, spans: Mapping[Activity, Sequence[Span]]) -> int:
    """Return the start of the first step: at the wait before it, or at its mark; its end if neither is known."""
    if start is None:
        return end.at_ns
    found = start
    for begin, until in reversed([span for span in spans.get(Activity.LOADER, ()) if span[1] <= start]):
        # A loader begins, and then the program waits for its first batch.
        if found < start and found - until > _ADJACENT_NS:
            break
        found = begin
    return min(found, end.at_ns)
