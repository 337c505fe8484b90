"""Find the steps of a trace: the ranges between two calls of `profiler.step()`."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.errors import EvidenceError
from frx_graph.evidence.trace.torch_trace import TorchTrace

_STEP = re.compile(r"ProfilerStep#(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Step:
    """A half-open range of host time. `number` is the profiler's, None if the whole trace counts as one step."""

    number: int | None
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a trace in order of time; at least one."""

    steps: tuple[Step, ...]

    @property
    def annotated(self) -> bool:
        """Return True if the program marked its steps."""
        return self.steps[0].number is not None

    def __len__(self) -> int:
        return len(self.steps)

    def find_position(self, time_ns: int) -> int | None:
        """Return the position of the step that runs at a host time; None between steps and outside them."""
        position = bisect_right(self.steps, time_ns, key=lambda step: step.start_ns) - 1
        return position if position >= 0 and time_ns < self.steps[position].end_ns else None


def find_steps(trace: TorchTrace, launch_ns: Sequence[int]) -> Steps:
    """Return the annotated steps in which an operator ran or a kernel was launched; otherwise one step for the whole
    trace.

    The profiler opens an empty step when recording ends; it is not counted. Raises `EvidenceError` if the trace has
    neither operators nor kernels, as when the times of none can be right.
    """
    called = [op.start_ns for op in trace.operators if not op.annotation and _STEP.fullmatch(op.name) is None]
    work = sorted([*called, *launch_ns])
    marked = sorted(
        (
            Step(int(match.group(1)), operator.start_ns, operator.end_ns)
            for operator in trace.operators
            if (match := _STEP.fullmatch(operator.name)) is not None
        ),
        key=lambda step: step.start_ns,
    )
    busy = tuple(step for step in marked if bisect_right(work, step.end_ns - 1) > bisect_right(work, step.start_ns - 1))
    if busy:
        return Steps(busy)
    ends = [operator.end_ns for operator in trace.operators] + [activity.end_ns for activity in trace.activities]
    if not ends:
        raise EvidenceError(f"{trace.path}: a trace without an operator or kernel whose times can be right")
    return Steps((Step(None, work[0] if work else 0, max(ends) + 1),))
