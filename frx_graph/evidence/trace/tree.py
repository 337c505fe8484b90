"""Link the events of a trace: operators nested by time on their thread, and each kernel's launching operator.

A kernel belongs to the innermost operator that ran on the launching thread when its launch was called; launch and
kernel share a correlation id. `External id` names the operator directly, but in some traces it repeats the correlation
id instead. So it is used only for a kernel whose launch was not recorded.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TypeVar

from frx_graph.evidence.trace.events import DeviceActivity, HostSpan, HostThread, Operator, PythonFrame
from frx_graph.evidence.trace.torch_trace import TorchTrace

NONE = -1
"""Represents "no parent", "no operator", "no frame" among indices."""
_CLOCK_TOLERANCE_NS = 1000
"""Old traces cut start and duration to whole microseconds each, so a child can seem to end after its parent."""
_OVERLAP_DEPTH = 64
"""Limit on the open spans searched for a parent, if a span outlasts the innermost one."""


_Spans = TypeVar("_Spans", bound=HostSpan)


@dataclass(frozen=True)
class TraceTree:
    """A trace with its events linked. All links are indices, `NONE` for a missing link.

    `operators` and `frames` are ordered so that parents come before their children. By operator: `parents`, and
    `frame_of`, the innermost Python frame. By frame: `frame_parents`. By device activity: `launcher`, the innermost
    operator that launched it, and `launch_ns`, the time of the launch on the host (its own start if that is unknown).
    """

    trace: TorchTrace
    operators: tuple[Operator, ...]
    parents: Sequence[int]
    frames: tuple[PythonFrame, ...]
    frame_parents: Sequence[int]
    frame_of: tuple[int, ...]
    launcher: tuple[int, ...]
    launch_ns: tuple[int, ...]

    @property
    def activities(self) -> tuple[DeviceActivity, ...]:
        """Activities of the devices."""
        return self.trace.activities

    @cached_property
    def launched(self) -> tuple[tuple[int, ...], ...]:
        """Return, by operator, the device activities that it launched itself."""
        by_operator: list[list[int]] = [[] for _ in self.operators]
        for activity, operator in enumerate(self.launcher):
            if operator != NONE:
                by_operator[operator].append(activity)
        return tuple(tuple(indices) for indices in by_operator)

    @cached_property
    def self_ns(self) -> tuple[int, ...]:
        """Return, by operator, the host time outside the operators that it called."""
        own = [operator.duration_ns for operator in self.operators]
        for index, parent in enumerate(self.parents):
            if parent != NONE:
                own[parent] -= self.operators[index].duration_ns
        return tuple(max(0, time) for time in own)

    @cached_property
    def backward_of(self) -> tuple[int | None, ...]:
        """Return, by operator, its autograd node's sequence number; None outside a backward pass."""
        sequences: list[int | None] = []
        for operator, parent in zip(self.operators, self.parents, strict=True):
            own = operator.sequence if operator.forward_thread else None
            sequences.append(own if own is not None or parent == NONE else sequences[parent])
        return tuple(sequences)

    @cached_property
    def backward_node(self) -> dict[int, int]:
        """Return the backward node for each autograd sequence number, the first to run."""
        nodes: dict[int, int] = {}
        for index, operator in enumerate(self.operators):
            if operator.forward_thread and operator.sequence is not None and not operator.name.startswith("autograd::"):
                nodes.setdefault(operator.sequence, index)
        return nodes

    @cached_property
    def forward_by_sequence(self) -> dict[int, int]:
        """Return the forward operator that recorded the node for each autograd sequence number.

        Operators that autograd does not record carry the number of the next one, so the last to begin is the owner.
        Threads count separately; a number that two threads used is left out.
        """
        owners: dict[int, int] = {}
        ambiguous: set[int] = set()
        inherited: list[int | None] = []
        for index, (operator, parent) in enumerate(zip(self.operators, self.parents, strict=True)):
            sequence = operator.sequence
            above = inherited[parent] if parent != NONE else None
            inherited.append(sequence if sequence is not None else above)
            if sequence is None or sequence == above or self.backward_of[index] is not None:
                continue
            if sequence in owners and self.operators[owners[sequence]].thread != operator.thread:
                ambiguous.add(sequence)
            owners[sequence] = index
        return {sequence: index for sequence, index in owners.items() if sequence not in ambiguous}


def build_tree(trace: TorchTrace) -> TraceTree:
    """Link the events of `trace`, in `n log n` time at any nesting."""
    operators = _sort_spans(trace.operators, lambda operator: operator.external_id or 0)
    frames = _sort_spans(trace.frames, lambda _: 0)
    moments = [(operator.thread, operator.start_ns) for operator in operators] if frames else []
    launcher, launch_ns = _link_launches(trace, operators)
    return TraceTree(
        trace=trace,
        operators=operators,
        parents=_find_parents(operators),
        frames=frames,
        frame_parents=_find_parents(frames),
        frame_of=tuple(find_innermost(frames, moments)) if frames else (NONE,) * len(operators),
        launcher=launcher,
        launch_ns=launch_ns,
    )


def _sort_spans(spans: Iterable[_Spans], tie: Callable[[_Spans], int]) -> tuple[_Spans, ...]:
    """Sort by thread and time, a parent before a child that begins with it."""
    # Sorted by one key after the other, the least first: a tuple of all of them for each span takes as much memory as
    # the spans do.
    ordered = sorted(spans, key=tie)
    ordered.sort(key=attrgetter("duration_ns"), reverse=True)
    ordered.sort(key=attrgetter("start_ns"))
    by_thread: dict[HostThread, list[_Spans]] = defaultdict(list)
    for span in ordered:
        by_thread[span.thread].append(span)
    threads = sorted(by_thread, key=lambda thread: (thread.process, thread.thread))
    return tuple(span for thread in threads for span in by_thread[thread])


def _find_parents(spans: Sequence[HostSpan]) -> Sequence[int]:
    """Return, for each span of an ordered sequence, the innermost earlier span on the same thread that contains it."""
    parents = array("q")
    running: list[int] = []
    ends: list[int] = []
    thread: HostThread | None = None
    for index, span in enumerate(spans):
        if span.thread is not thread and span.thread != thread:
            running.clear()
            ends.clear()
            thread = span.thread
        start, end = span.start_ns, span.end_ns
        while ends and ends[-1] <= start:
            running.pop()
            ends.pop()
        latest_end = end - _CLOCK_TOLERANCE_NS
        parent = NONE
        for depth in range(-1, -min(len(ends), _OVERLAP_DEPTH) - 1, -1):
            if ends[depth] >= latest_end and ends[depth] > start:
                parent = running[depth]
                break
        parents.append(parent)
        running.append(index)
        ends.append(end)
    return parents


def find_innermost(spans: Sequence[HostSpan], moments: Sequence[tuple[HostThread, int]]) -> list[int]:
    """Return, by moment `(thread, time)`, the last span of an ordered sequence to begin there that is still running."""
    by_thread: dict[HostThread, list[int]] = defaultdict(list)
    for index, span in enumerate(spans):
        by_thread[span.thread].append(index)
    found = [NONE] * len(moments)
    asked: dict[HostThread, list[int]] = defaultdict(list)
    for position, (thread, _) in enumerate(moments):
        asked[thread].append(position)
    for thread, positions in asked.items():
        candidates = by_thread.get(thread, [])
        positions.sort(key=lambda position: moments[position][1])
        running: list[int] = []
        begun = 0
        for position in positions:
            time = moments[position][1]
            while begun < len(candidates) and spans[candidates[begun]].start_ns <= time:
                # A span that ended before the next one began cannot be running later.
                while running and spans[running[-1]].end_ns < spans[candidates[begun]].start_ns:
                    running.pop()
                running.append(candidates[begun])
                begun += 1
            while running and spans[running[-1]].end_ns < time:
                running.pop()
            if running:
                found[position] = running[-1]
    return found


def _link_launches(trace: TorchTrace, operators: Sequence[Operator]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return, by activity, its launching operator, and the launch time."""
    wanted = {activity.correlation for activity in trace.activities} - {None}
    calls = {call.correlation: call for call in trace.calls if call.correlation in wanted}
    numbers = list(calls)
    found = find_innermost(operators, [(calls[number].thread, calls[number].start_ns) for number in numbers])
    by_correlation = dict(zip(numbers, found, strict=True))
    by_external_id = {
        operator.external_id: index for index, operator in enumerate(operators) if operator.external_id is not None
    }
    launcher: list[int] = []
    launch_ns: list[int] = []
    for activity in trace.activities:
        call = calls.get(activity.correlation)
        if call is not None:
            launcher.append(by_correlation[activity.correlation])
            launch_ns.append(call.start_ns)
            continue
        named = by_external_id.get(activity.external_id, NONE) if activity.external_id is not None else NONE
        launcher.append(named)
        launch_ns.append(operators[named].start_ns if named != NONE else activity.start_ns)
    return tuple(launcher), tuple(launch_ns)
