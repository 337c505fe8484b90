"""Measure if the host supplies the device with kernels in time."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.timeline.device_time import DeviceTime
from frx_graph.analyzers.timeline.host_time import Part
from frx_graph.analyzers.timeline.windows import Windows
from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.analyzers.trace.operators import is_operator, iterate_upwards
from frx_graph.evidence.trace.events import ActivityKind
from frx_graph.evidence.trace.tree import NONE, TraceTree

SMALL_KERNEL_NS = 10_000
"""A kernel below 10 us is small: about what a launch costs the host, so such kernels cannot hide the next launch."""


@dataclass(frozen=True, slots=True)
class Launches:
    """Kernels that were launched within the steps. `per_step` is None without marked steps.

    `starved` counts kernels whose stream had run dry before the host even called for them, out of `judged` kernels with
    a known call. `call_ns` is the time of the launching calls, None if none was recorded. `gaps` are the idle times of
    the devices between two activities. `small_parts` and `small_operators` count small kernels by the part of the step
    and by the outermost operator that launched them, the most frequent first.
    """

    kernels: int
    per_step: float | None
    median_ns: float
    small: int
    small_ns: int
    small_parts: Mapping[Part, int]
    small_operators: Mapping[str, int]
    starved: int
    judged: int
    calls: int
    call_ns: int | None
    median_call_ns: float | None
    gaps: int
    gap_ns: int
    median_gap_ns: float | None


def measure_launches(
    analysis: TraceAnalysis, windows: Windows, devices: tuple[DeviceTime, ...], parts: Sequence[Part]
) -> Launches | None:
    """Measure launches; None if no kernel was launched. `parts` is by operator."""
    tree = analysis.tree
    kernels = [index for index in windows.launched if tree.activities[index].kind is ActivityKind.KERNEL]
    times = [tree.activities[index].duration_ns for index in kernels]
    if not times:
        return None
    launchers = [tree.launcher[index] for index in kernels if tree.activities[index].duration_ns < SMALL_KERNEL_NS]
    asked = Counter(parts[launcher] if launcher != NONE else Part.OTHER for launcher in launchers)
    operators = Counter(name for launcher in launchers if (name := _find_outermost(tree, launcher)) is not None)
    starved, judged = _count_starved(analysis, windows)
    wanted = {tree.activities[index].correlation for index in windows.launched} - {None}
    calls = [call.duration_ns for call in tree.trace.calls if call.correlation in wanted]
    gaps = [end - start for device in devices for start, end in device.gaps]
    small = [time for time in times if time < SMALL_KERNEL_NS]
    return Launches(
        kernels=len(times),
        per_step=len(times) / windows.steps if windows.steps else None,
        median_ns=statistics.median(times),
        small=len(small),
        small_ns=sum(small),
        small_parts=dict(asked.most_common()),
        small_operators=dict(operators.most_common()),
        starved=starved,
        judged=judged,
        calls=len(calls),
        call_ns=sum(calls) if calls else None,
        median_call_ns=statistics.median(calls) if calls else None,
        gaps=len(gaps),
        gap_ns=sum(gaps),
        median_gap_ns=statistics.median(gaps) if gaps else None,
    )


def _find_outermost(tree: TraceTree, launcher: int) -> str | None:
    """Return the name of the outermost operator around a launch; None if it was in none."""
    found = None
    for index in iterate_upwards(tree, launcher):
        found = tree.operators[index].name if is_operator(tree.operators[index]) else found
    return found


def _count_starved(analysis: TraceAnalysis, windows: Windows) -> tuple[int, int]:
    tree = analysis.tree
    by_stream: dict[tuple[int | None, str], list[int]] = defaultdict(list)
    for index in windows.launched:
        activity = tree.activities[index]
        by_stream[activity.device, activity.stream].append(index)
    starved = judged = 0
    for indices in by_stream.values():
        indices.sort(key=lambda index: tree.activities[index].start_ns)
        done: int | None = None
        for index in indices:
            activity = tree.activities[index]
            called = tree.launch_ns[index]
            # Without a recorded call, this is the activity's own start.
            known = activity.kind is ActivityKind.KERNEL and called < activity.start_ns
            if known and done is not None:
                judged += 1
                starved += called >= done
            done = activity.end_ns if done is None else max(done, activity.end_ns)
    return starved, judged
