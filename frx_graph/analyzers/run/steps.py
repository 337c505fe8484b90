"""The steps of a run, timed from batch to batch: from where one ended to where the next ends in the same process.

What a program waits for its batch stands before the step that it marks, in a loop over a DataLoader; timed from inside
the step it would not be there.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from frx_graph.evidence.run.events import (
    CopySpan,
    GpuSample,
    LoaderWait,
    PhaseSpan,
    RunEvent,
    RunWarning,
    StepEnd,
    StepStart,
    SyncWait,
    SystemInfo,
)
from frx_graph.evidence.trace.intervals import Span, merged, without

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


SKIP_FIRST = 5
"""Steps of a process in which it compiles, tunes, starts workers and fills queues; as many as a trial warms up with."""
SKIP_AT_MOST = 5
"""One of as many steps may be skipped: of a short run most is used."""
LAST = 1000
"""Of a long run, how it is now: its last steps of each process."""


class Scope(enum.StrEnum):
    """What `--scope` names."""

    RUN = "run"
    STEADY_STATE = "steady_state"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Selector:
    """How the steady state is chosen, of each process: `skip_first_n` steps are left out, or every fifth of them where
    that is fewer, and of the others the `last_k` are used."""

    skip_first_n: int = SKIP_FIRST
    last_k: int = LAST

    def select(self, steps: Sequence[RunStep]) -> tuple[RunStep, ...]:
        """Of steps in order of time, those that are in a steady state."""
        found: list[RunStep] = []
        for here in processes(steps).values():
            skipped = min(self.skip_first_n, len(here) // SKIP_AT_MOST)
            found.extend(here[skipped:][-self.last_k :])
        return tuple(found)


def processes(steps: Sequence[RunStep]) -> dict[int | None, list[RunStep]]:
    """The steps of each process."""
    found: dict[int | None, list[RunStep]] = defaultdict(list)
    for step in steps:
        found[step.process].append(step)
    return dict(found)


class Activity(enum.StrEnum):
    """What time of a step goes to."""

    LOADER = "loader_wait"
    H2D = "h2d"
    D2H = "d2h"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    SYNC = "sync"
    OTHER = "other"
    """Parts of a step, and copies, that have no place above."""


_PHASES = {"forward": Activity.FORWARD, "backward": Activity.BACKWARD, "optimizer": Activity.OPTIMIZER}
_COPIES = {"h2d": Activity.H2D, "d2h": Activity.D2H}
_COMPUTING = (Activity.FORWARD, Activity.BACKWARD, Activity.OPTIMIZER)


@dataclass(frozen=True, slots=True)
class RunStep:
    """One step. It lasts from `begin_ns`, where the one before it ended, to `end_ns`; the program marked it from
    `start_ns`, None if it did not say. `times` has what was recorded of the process at all, 0 where not in this step;
    they may overlap. What none of them covers is `unexplained_ns`, of which `between_ns` is before the mark. Where it
    is not `whole` events are missing since the step before, whole steps perhaps: its times are none."""

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
    unexplained_ns: int
    between_ns: int | None
    loss: float | None
    layout: int | None

    @property
    def wall_ns(self) -> int:
        """From batch to batch."""
        return self.end_ns - self.begin_ns


def steps_of(record: ProcessEvents) -> tuple[RunStep, ...]:
    """All steps of a process that ended, in order of time; a step within another one is a part of that. An event that
    was written twice counts once."""
    ends = list(dict.fromkeys(event for event in record.events if isinstance(event, StepEnd) and not event.depth))
    spans = _spans(record.events)
    gaps = _gaps(record.events)
    starts = _starts(record.events, ends)
    begins = [_first_begin(ends[0], starts[0], spans), *(end.at_ns for end in ends[:-1])]
    windows = list(zip(begins, (end.at_ns for end in ends), strict=True))
    lengths = {activity: lengths_within(windows, here) for activity, here in spans.items()}
    known = merged(span for here in spans.values() for span in here)
    explained = lengths_within(windows, known)
    # Steps that overlap, or are marked from before the last one ended, have nothing between them.
    before = [
        (begin, begin if start is None else max(begin, start)) for begin, start in zip(begins, starts, strict=True)
    ]
    explained_before = lengths_within(before, known)
    return tuple(
        RunStep(
            process=record.process,
            clock=record.clock,
            number=end.step,
            kind=end.kind,
            failed=end.failed,
            whole=not any(gap.within(begin, end.at_ns) for gap in gaps),
            begin_ns=begin,
            start_ns=start,
            end_ns=end.at_ns,
            times=MappingProxyType({activity: here[index] for activity, here in lengths.items()}),
            unexplained_ns=end.at_ns - begin - explained[index],
            between_ns=None if start is None else before[index][1] - begin - explained_before[index],
            loss=end.loss,
            layout=end.batch_layout,
        )
        for index, (end, start, begin) in enumerate(zip(ends, starts, begins, strict=True))
    )


def unfinished_steps(record: ProcessEvents) -> int:
    """Steps that began and did not end: at most those that ran when it was killed. Numbers may begin anew in every
    epoch. Where events are missing behind a beginning, so may be its end."""
    lost = max((gap.until_ns for gap in _gaps(record.events)), default=-1)
    marks = {event for event in record.events if isinstance(event, (StepStart, StepEnd)) and event.at_ns >= lost}
    begun = Counter(event.step for event in marks if isinstance(event, StepStart))
    ended = Counter(event.step for event in marks if isinstance(event, StepEnd))
    return (begun - ended).total()


def lengths_within(windows: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """How long the merged spans run in each of the windows, which follow each other and do not overlap."""
    found = []
    first = 0
    for begin, end in windows:
        while first < len(spans) and spans[first][1] <= begin:
            first += 1
        length, index = 0, first
        while index < len(spans) and spans[index][0] < end:
            length += min(end, spans[index][1]) - max(begin, spans[index][0])
            index += 1
        found.append(length)
    return found


@dataclass(frozen=True, slots=True)
class _Gap:
    """A time of which events are missing: from the first of them to the last, as far as that was told."""

    since_ns: int
    until_ns: int

    def within(self, begin_ns: int, end_ns: int) -> bool:
        """Whether one of the events that are missing may belong behind `begin_ns`, up to `end_ns`."""
        return self.since_ns < end_ns and (self.since_ns >= begin_ns or self.until_ns > begin_ns)


def _gaps(events: Iterable[RunEvent]) -> list[_Gap]:
    return [
        _Gap(event.at_ns, max(event.at_ns, event.until_ns or 0))
        for event in events
        if isinstance(event, RunWarning) and event.dropped is not None
    ]


def _spans(events: Iterable[RunEvent]) -> dict[Activity, tuple[Span, ...]]:
    gathered: dict[Activity, list[Span]] = defaultdict(list)
    for event in events:
        match event:
            case LoaderWait():
                activity = Activity.LOADER
            case CopySpan(direction=direction):
                activity = _COPIES.get(direction.lower(), Activity.OTHER)
            case SyncWait():
                activity = Activity.SYNC
            case PhaseSpan(phase=phase):
                activity = _PHASES.get(phase.lower(), Activity.OTHER)
            case _:
                continue
        gathered[activity].append((event.at_ns - event.duration_ns, event.at_ns))
    spans = {activity: merged(here) for activity, here in gathered.items()}
    if Activity.LOADER in spans:
        # A thread that waits for a batch while another computes holds nothing up.
        computing = merged(span for activity in _COMPUTING for span in spans.get(activity, ()))
        spans[Activity.LOADER] = without(spans[Activity.LOADER], computing)
    return spans


def _starts(events: Iterable[RunEvent], ends: Sequence[StepEnd]) -> list[int | None]:
    """When each step began, by its duration, or else by the last event that says so."""
    marked: dict[int | None, list[int]] = defaultdict(list)
    for event in events:
        if isinstance(event, StepStart):
            marked[event.step].append(event.at_ns)
    found: list[int | None] = []
    for end in ends:
        if end.duration_ns is not None:
            found.append(end.at_ns - end.duration_ns)
        else:
            found.append(max((at for at in marked.get(end.step, ()) if at <= end.at_ns), default=None))
    return found


def _first_begin(end: StepEnd, start: int | None, spans: Mapping[Activity, Sequence[Span]]) -> int:
    """Of the first step: where the wait before it began, or where the program marked it. Where neither is known it
    lasts no time, so that it is not counted."""
    if start is None:
        return end.at_ns
    before = [span for span in spans.get(Activity.LOADER, ()) if span[1] <= start]
    return min(start, before[-1][0]) if before else min(start, end.at_ns)
