"""Context managers that record a program's step and its parts.

A step enters them some ten times, so they do little: read the clock, and put a tuple into a queue. They pass every
exception on unchanged, and raise none themselves. Steps may be nested, and may be left in another order than they were
entered, as generators do. A span belongs to the thread's innermost step.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import Any

from frx_graph.errors import summarize_error
from frx_graph.runs.sdk.event_lines import Line, format_step_end, format_step_start
from frx_graph.runs.sdk.recorder import Recorder, StepMarks
from frx_graph.runs.sdk.recording_settings import warn_once
from frx_graph.runs.sdk.scalar_reading import PendingScalar, Reading, read_scalar

_MOST_METRICS = 32
_DEEPEST = 16
"""Steps within steps; a program that exceeds it enters steps and never leaves them."""


class ThreadPosition(threading.local):
    """The step and the loader wait that a thread is in."""

    step: Step | None = None
    loading = False


HERE = ThreadPosition()


class Step:
    """One step. `record` notes its loss and metrics; `describe`, its batch and model."""

    # On the class, so that they need not be set in each step.
    depth = 0
    _start: int | None = None
    _outer: Step | None = None
    _loss: Reading | None = None
    _metrics: dict[str, Reading] | None = None
    _pending: tuple[PendingScalar, ...] = ()

    def __init__(self, recorder: Recorder, number: int | None, kind: str, layout: int | None) -> None:
        self.number = number
        self._recorder = recorder
        self._kind = kind
        self._layout = layout

    def __enter__(self) -> Step:
        try:
            outer = HERE.step
            if outer is not None and outer.depth < _DEEPEST:
                self._outer = outer
                self.depth = outer.depth + 1
            HERE.step = self
            recorder = self._recorder
            self._start = start = perf_counter_ns()
            recorder.put((format_step_start, start + recorder.epoch, self.number, self._kind, self.depth))
        except Exception as error:  # noqa: BLE001 - the program goes on
            warn_once(f"a step is not recorded: {summarize_error(error)}")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end = perf_counter_ns()
        start = self._start
        if start is None:
            return
        self._start = None
        try:
            recorder, failed = self._recorder, kind is not None
            at, took = end + recorder.epoch, end - start
            event = (
                format_step_end, at, self.number, took, self._kind, failed, self._loss, self._metrics, self._layout,
                self.depth,
            )  # fmt: skip
            if self._pending:
                recorder.put_when_ready(event, self._pending)
            else:
                recorder.put(event)
            if HERE.step is self:
                outer = self._outer
                while outer is not None and outer._start is None:
                    outer = outer._outer
                HERE.step = outer
            self._outer = None
        except Exception as error:  # noqa: BLE001 - the program goes on
            warn_once(f"a step is not recorded: {summarize_error(error)}")

    def record(self, loss: Any = None, **metrics: Any) -> None:
        """The step's loss and other figures, each a number or a tensor of one element; of those given more than once
        the last counts. Tensors on a device are read when it has computed them, without waiting."""
        if loss is not None:
            self._loss = reading = read_scalar(loss)
            if type(reading) is PendingScalar:
                self._pending = (*self._pending, reading)
        for name, value in metrics.items():
            known = self._metrics
            if known is None:
                known = self._metrics = {}
            reading = value if type(value) is float else read_scalar(value)
            if type(reading) is PendingScalar:
                self._pending = (*self._pending, reading)
            if reading is not None and (name in known or len(known) < _MOST_METRICS):
                known[name] = reading

    def describe(self, batch: Any = None, model: Any = None) -> None:
        """Give the batch and the model of a step that has begun without them."""
        layout = self._recorder.record_layouts(self.number, batch, model)
        if layout is not None:
            self._layout = layout


class MarkedStep(Step):
    """A step that is also profiled."""

    def __init__(self, marks: StepMarks, recorder: Recorder, number: int | None, kind: str, layout: int | None) -> None:
        super().__init__(recorder, number, kind, layout)
        self._marks = marks

    def __enter__(self) -> Step:
        super().__enter__()
        if not self.depth:
            self._marks.begin_step()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        super().__exit__(kind, *rest)
        if not self.depth:
            self._marks.end_step()


class Span:
    """A part of a step, or of the time between steps. `told` holds what its line takes besides the duration."""

    __slots__ = ("_line", "_recorder", "_start", "_told")

    def __init__(self, recorder: Recorder, line: Line, told: str) -> None:
        self._recorder = recorder
        self._line = line
        self._told = told
        self._start: int | None = None

    def __enter__(self) -> None:
        self._start = perf_counter_ns()

    def __exit__(self, _kind: type[BaseException] | None, *_: object) -> None:
        end = perf_counter_ns()
        start = self._start
        if start is None:
            return
        self._start = None
        step = HERE.step
        recorder = self._recorder
        event = self._line, end + recorder.epoch, None if step is None else step.number, end - start, self._told
        writer = recorder.writer
        if len(writer.queue) < writer.room:
            # As `put`, without the call: most events are spans.
            writer.queue.append(event)
        else:
            writer.put(event)


class LoaderSpan(Span):
    """A wait for a batch. A loader that times itself does not report inside it, so that no wait counts twice."""

    __slots__ = ("_told_at_end", "_was_loading")

    def __init__(self, recorder: Recorder, line: Line, told: str, told_at_end: str) -> None:
        super().__init__(recorder, line, told)
        self._told_at_end = told_at_end

    def __enter__(self) -> None:
        self._was_loading = HERE.loading
        HERE.loading = True
        super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        HERE.loading = self._was_loading
        if kind is StopIteration:
            self._told = self._told_at_end
        super().__exit__(kind, *rest)


class NoStep(Step):
    """A step that is not recorded."""

    def __init__(self) -> None:
        self.number = None

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def record(self, loss: Any = None, **metrics: Any) -> None:
        """Nothing."""

    def describe(self, batch: Any = None, model: Any = None) -> None:
        """Nothing."""


NO_STEP = NoStep()
