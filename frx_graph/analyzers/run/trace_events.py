"""The events that a profiler's trace stands for, where a program wrote none: steps, and waits for input and devices."""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.timeline.program_parts import Part
from frx_graph.analyzers.timeline.timeline import Timeline
from frx_graph.evidence.run.events import LoaderWait, PhaseSpan, RunEvent, StepEnd, SyncWait

_PHASES = (Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER, Part.ZERO_GRAD)


def trace_events(trace: Timeline) -> tuple[RunEvent, ...]:
    """None where the program marked no steps. Times are the trace's own. Copies are not among them: that they run says
    nothing of the program, which goes on meanwhile."""
    return tuple(sorted(_events(trace), key=lambda event: event.at_ns))


def _events(trace: Timeline) -> Iterator[RunEvent]:
    windows = trace.windows
    for step in (*windows.left_out, *windows.used):
        yield StepEnd(at_ns=step.end_ns, step=step.number, duration_ns=step.end_ns - step.start_ns)
    if not windows.used:
        return
    for part in _PHASES:
        for start, end in trace.host.part_spans.get(part, ()):
            yield PhaseSpan(at_ns=end, phase=part.value, duration_ns=end - start)
    for start, end in trace.host.loading or ():
        yield LoaderWait(at_ns=end, duration_ns=end - start)
    for start, end in trace.host.waiting or ():
        yield SyncWait(at_ns=end, duration_ns=end - start)
