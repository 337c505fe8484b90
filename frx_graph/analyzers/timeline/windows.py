"""Choose the part of a trace that counts: its steps, without an unusual first one."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.evidence.trace.events import Span as Event
from frx_graph.evidence.trace.intervals import Span, intersect_spans, merge_spans, sum_spans
from frx_graph.evidence.trace.steps import Step, Steps

WARM_UP_FACTOR = 2.0
"""The first step is left out if it takes longer than this many times the median of the others: it compiles, or tunes.
Steps of the traces at hand differ by less than 1.4 times, except one that found empty queues and was shorter."""
_FEWEST = 3
"""Fewest steps for one to count as unusual."""


def clip_events(events: Iterable[Event], spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return the times within merged spans at which any of the events runs."""
    return intersect_spans(merge_spans((one.start_ns, one.end_ns) for one in events), spans)


@dataclass(frozen=True, slots=True)
class Windows:
    """The part that counts; without marked steps, the whole trace, and `used` is empty. Spans are merged."""

    used: tuple[Step, ...]
    left_out: tuple[Step, ...]
    host_spans: tuple[Span, ...]
    """The used steps."""
    spans: tuple[Span, ...]
    """The same steps, the last one extended until its device work ends: devices run behind."""
    launched: tuple[int, ...]
    """Device activities that were launched in these steps."""

    @property
    def span_ns(self) -> int:
        """Return the total length of the devices' spans."""
        return sum_spans(self.spans)

    @property
    def host_ns(self) -> int:
        """Return the total length of the used steps."""
        return sum_spans(self.host_spans)

    @property
    def steps(self) -> int | None:
        """Return the number of used steps; None if the program marked none."""
        return len(self.used) or None


def find_windows(analysis: TraceAnalysis) -> Windows:
    """Return the steady part of a trace."""
    tree, trace = analysis.tree, analysis.tree.trace
    if not analysis.steps.annotated:
        events: list[Event] = [*tree.operators, *trace.calls, *trace.activities]
        whole = merge_spans([(min(one.start_ns for one in events), max(one.end_ns for one in events))])
        return Windows((), (), whole, whole, tuple(range(len(tree.activities))))
    used: tuple[Step, ...] = analysis.steps.steps
    left_out: tuple[Step, ...] = ()
    if len(used) >= _FEWEST:
        first, *others = (step.end_ns - step.start_ns for step in used)
        if first > WARM_UP_FACTOR * statistics.median(others):
            used, left_out = used[1:], used[:1]
    steps = Steps(used)
    launched = tuple(index for index, time in enumerate(tree.launch_ns) if steps.find_position(time) is not None)
    last = max((tree.activities[index].end_ns for index in launched), default=0)
    host_spans = [(step.start_ns, step.end_ns) for step in used]
    start, end = host_spans[-1]
    return Windows(
        used, left_out, merge_spans(host_spans), merge_spans([*host_spans, (start, max(end, last))]), launched
    )
