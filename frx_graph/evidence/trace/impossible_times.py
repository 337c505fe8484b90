"""Find events whose times cannot be right, as profilers sometimes write them.

A stream runs one thing after the other, and a profiler stops soon after the last work. Kernels of one stream may still
overlap, by programmatic launches or in CUDA graphs, so an event is impossible only if it also takes far longer than
others like it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from frx_graph.evidence.trace.events import DeviceActivity, Span

_FAR = 10
"""An event is out of line if it takes more than this many times as long as the median of others with the same name."""
_HOUR_NS = 3_600_000_000_000
"""No profile is that long."""
_COVERED = 2
"""Later events of a stream that an impossible one covers. If it covers one, that one may be what is wrong."""


@dataclass(frozen=True, slots=True)
class ImpossibleEvent:
    """An event that is left out, and the reason."""

    event: Span
    reason: str


def find_unset(events: Iterable[Span]) -> tuple[ImpossibleEvent, ...]:
    """Return events that begin at 0, if all others begin more than an hour later."""
    unset = []
    first: int | None = None
    for event in events:
        if event.start_ns <= 0:
            unset.append(event)
        elif first is None or event.start_ns < first:
            first = event.start_ns
    if first is None or first < _HOUR_NS:
        return ()
    return tuple(ImpossibleEvent(event, "begins at 0, long before all others") for event in unset)


def find_impossible(
    activities: Sequence[DeviceActivity], host: Iterable[Sequence[Span]]
) -> tuple[ImpossibleEvent, ...]:
    """Return activities of devices that cannot have taken so long. `host` are all events of the host."""
    far = _find_outliers(activities)
    if not far:
        return ()
    found = list(_find_overlapping(activities, far))
    known = {id(one.event) for one in found}
    left = sorted((one for one in activities if id(one) not in known), key=lambda one: one.end_ns)
    moments = [(event.start_ns, event.end_ns) for events in host for event in events]
    while len(left) > 1 and id(left[-1]) in far:
        last = left.pop()
        begin = min(min(start for start, _ in moments), left[0].start_ns) if moments else left[0].start_ns
        end = max([left[-1].end_ns, *(stop for _, stop in moments)])
        if last.end_ns - max(end, last.start_ns) <= end - begin:
            break
        found.append(ImpossibleEvent(last, "ends long after everything else"))
    return tuple(found)


def _find_outliers(activities: Sequence[DeviceActivity]) -> Mapping[int, DeviceActivity]:
    """Return activities, by identity, that take far longer than others with the same name. One that is alone with its
    name is compared with the longest other activity on the stream."""
    by_name: dict[str, list[DeviceActivity]] = defaultdict(list)
    longest: dict[tuple[int | None, str], list[int]] = defaultdict(list)
    for one in activities:
        by_name[one.name].append(one)
        two = longest[one.device, one.stream]
        two[:] = sorted([*two, one.duration_ns])[-2:]
    far: dict[int, DeviceActivity] = {}
    for same in by_name.values():
        if len(same) > 1:
            # The median of the others: they are all before it if it is the longest, as an outlier is.
            usual = statistics.median_low(sorted(one.duration_ns for one in same)[:-1])
        elif len(two := longest[same[0].device, same[0].stream]) > 1:
            usual = two[0]
        else:
            continue
        far.update((id(one), one) for one in same if one.duration_ns > _FAR * usual)
    return far


def _find_overlapping(
    activities: Sequence[DeviceActivity], far: Mapping[int, DeviceActivity]
) -> Iterable[ImpossibleEvent]:
    """Yield outliers during which later ones of their stream begin and end."""
    streams = {(one.device, one.stream) for one in far.values()}
    by_stream: dict[tuple[int | None, str], list[DeviceActivity]] = defaultdict(list)
    for one in activities:
        if (one.device, one.stream) in streams:
            by_stream[one.device, one.stream].append(one)
    for inside in by_stream.values():
        inside.sort(key=lambda one: one.start_ns)
        for place, one in enumerate(inside):
            if id(one) not in far:
                continue
            covered = 0
            for later in inside[place + 1 :]:
                if later.start_ns >= one.end_ns:
                    break
                covered += later.end_ns <= one.end_ns
            if covered >= _COVERED:
                yield ImpossibleEvent(one, f"overlaps {covered} later events on the same stream")
