"""Detect a loop that checks in each iteration if the thread has work, although the answer never changes.

Certain for an innermost loop whose accesses all depend on one condition on the thread's place that the loop does not
change. Silent if the loop has a barrier, which all threads must reach.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.evidence.cuda.source import Access, Barrier, Branch, Call, CudaSource, Kernel


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per condition."""
    for kernel in source.kernels:
        loops = kernel.loops
        for event in kernel.events:
            if not isinstance(event, Branch) or not event.invariant or event.arms > 1 or not event.step.loops:
                continue
            loop = loops.get(event.step.loops[-1])
            if loop is None or not loop.innermost or loop.count == 1:
                continue
            if event.condition.bounds and event.condition.thread and _covers_loop_body(kernel, loop.number, event):
                place = f"the loop in {source.describe_line(loop.step.line)}"
                message = f"`{event.condition.text}` has the same value in every iteration of {place}"
                yield Occurrence(kernel.name, event.step.line, message)


def _covers_loop_body(kernel: Kernel, loop: int, branch: Branch) -> bool:
    inside = [event for event in kernel.events if loop in event.step.loops and event is not branch]
    work = [event for event in inside if isinstance(event, Access)]
    if not work or any(isinstance(event, (Barrier, Call)) for event in inside):
        return False
    return all((branch.number, 0) in event.step.arms for event in work)
