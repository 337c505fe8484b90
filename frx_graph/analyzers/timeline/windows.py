"""Choose the part of a trace that counts: its steps, without an unusual first one."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from frx_graph.analyzers.trace.analysis import TraceAnalysis
from frx_graph.evidence.trace.intervals import Span, merge_spans, sum_spans
from frx_graph.evidence.trace.steps import Step, Steps

WARM_UP_FACTOR = 2.0
"""The first step is left out if it takes longer than this many times the median of the others: it compiles, or tunes.
Steps of the traces at hand differ by less than 1.4 times, except one that found empty queues and was shorter."""
_FEWEST = 3
"""Fewest steps for one to count as unusual."""


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
        events = [
            *((one.start_ns, one.end_ns) for one in tree.operators),
            *((one.start_ns, one.end_ns) for one in trace.calls),
            *((one.start_ns, one.end_ns) for one in trace.activities),
        ]
        whole = merge_spans([(min(start for start, _ in events), max(end for _, end in events))])
        return Windows((), (), whole, whole, tuple(range(len(tree.activities))))
    used, left_out = _split_steady(analysis.steps.steps)
    steps = Steps(used)
    launched = tuple(index for index, time in enumerate(tree.launch_ns) if steps.find_position(time) is not None)
    last = max((tree.activities[index].end_ns for index in launched), default=0)
    host_spans = [(step.start_ns, step.end_ns) for step in used]
    start, end = host_spans[-1]
    return Windows(
        used, left_out, merge_spans(host_spans), merge_spans([*host_spans, (start, max(end, last))]), launched
    )


def _split_steady(steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    if len(steps) < _FEWEST:
        return steps, ()
    first, *others = (step.end_ns - step.start_ns for step in steps)
    if first > WARM_UP_FACTOR * statistics.median(others):
        return steps[1:], steps[:1]
    return steps, ()
