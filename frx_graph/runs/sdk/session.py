"""Record a training script's run: its steps, their parts, its loaders.

A process has one session. It records if the environment asks for it, as under `frx collect`, and otherwise does
nothing. It never breaks the program: a failure here prints one line to standard error.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from frx_graph.errors import summarize_error
from frx_graph.runs.sdk.event_lines import (
    dump_loader_payload,
    format_copy,
    format_loader_wait,
    format_phase,
    format_sync,
    quote_text,
)
from frx_graph.runs.sdk.loader_waits import END, NEXT, TimedIterating, TimedLoader, time_in_place
from frx_graph.runs.sdk.recorder import Recorder
from frx_graph.runs.sdk.recording_settings import RecordingSettings, read_settings, warn_once
from frx_graph.runs.sdk.step import HERE, NO_STEP, LoaderSpan, MarkedStep, Span, Step

Batches = TypeVar("Batches", bound=Iterable[Any])
_NO_SPAN: AbstractContextManager[None] = contextlib.nullcontext()
_WAIT, _NO_MORE = dump_loader_payload(NEXT, {}), dump_loader_payload(END, {})
_TRAIN, _EVAL, _FORWARD, _BACKWARD, _OPTIMIZER = map(quote_text, ("train", "eval", "forward", "backward", "optimizer"))
_LARGEST = 2**63
"""Bound of whole numbers, beyond which readers of JSON disagree."""


class AutopilotSession:
    """Records the run of one process. Programs get the process's session from `from_env`."""

    def __init__(self, settings: RecordingSettings) -> None:
        self.settings = settings
        self.recorder = self._make_recorder()
        """None if nothing is recorded."""
        self._steps = itertools.count()

    @classmethod
    def from_env(cls) -> AutopilotSession:
        """The process's session, which records as the `FRX_` variables say now."""
        return _PROCESS.get_session()

    def step(self, step_id: Any = None, step_kind: str | None = None, *, batch: Any = None, model: Any = None) -> Step:
        """Return a step, as a context manager that gives an object with `record` and `describe`. Without a `step_id`,
        steps are counted from 0. `step_kind` is `train`, unless it is given or the model is in evaluation mode."""
        recorder = self.recorder
        if recorder is None:
            return NO_STEP
        try:
            counted = next(self._steps)
            if step_id is None:
                number: int | None = counted
            elif type(step_id) is int and -_LARGEST < step_id < _LARGEST:
                number = step_id
            else:
                number = _get_whole_number(step_id)
            if step_kind is None:
                kind = _TRAIN if model is None or getattr(model, "training", True) else _EVAL
            else:
                kind = quote_text(str(step_kind))
            layout = recorder.record_layouts(number, batch, model)
            window = recorder.window
            if window is None:
                return Step(recorder, number, kind, layout)
            return MarkedStep(window, recorder, number, kind, layout)
        except Exception as error:  # noqa: BLE001 - the program goes on
            warn_once(f"a step is not recorded: {summarize_error(error)}")
            return NO_STEP

    def span(self, phase: str) -> AbstractContextManager[None]:
        """Time a part of a step, under a name that the program chooses."""
        recorder = self.recorder
        return _NO_SPAN if recorder is None else Span(recorder, format_phase, quote_text(str(phase)))

    def forward_span(self) -> AbstractContextManager[None]:
        """Time the forward pass on the host. The other spans also time the host."""
        recorder = self.recorder
        return _NO_SPAN if recorder is None else Span(recorder, format_phase, _FORWARD)

    def backward_span(self) -> AbstractContextManager[None]:
        """Time the backward pass."""
        recorder = self.recorder
        return _NO_SPAN if recorder is None else Span(recorder, format_phase, _BACKWARD)

    def optimizer_span(self) -> AbstractContextManager[None]:
        """Time the optimizer's step."""
        recorder = self.recorder
        return _NO_SPAN if recorder is None else Span(recorder, format_phase, _OPTIMIZER)

    def dataloader_span(self) -> AbstractContextManager[None]:
        """Time the wait for a batch, if the loader is not instrumented."""
        recorder = self.recorder
        return _NO_SPAN if recorder is None else LoaderSpan(recorder, format_loader_wait, _WAIT, _NO_MORE)

    def copy_span(self, copy_kind: str = "h2d") -> AbstractContextManager[None]:
        """Time a copy between host and device: `h2d`, `d2h` or another."""
        recorder = self.recorder
        return _NO_SPAN if recorder is None else Span(recorder, format_copy, quote_text(str(copy_kind)))

    def sync_span(self) -> AbstractContextManager[None]:
        """Time the wait for a device."""
        recorder = self.recorder
        return _NO_SPAN if recorder is None else Span(recorder, format_sync, "")

    def instrument(self, loader: Batches) -> Batches:
        """Return a loader that times the wait for each batch, and otherwise behaves like the given iterable.

        If nothing is recorded, return the given loader.
        """
        if self.recorder is None:
            return loader
        if isinstance(loader, Iterator):
            return cast("Batches", TimedIterating(loader, self))
        return cast("Batches", TimedLoader(loader, self))

    def time_in_place(self, loader: Any, seen: Callable[[Any], None] | None = None) -> AbstractContextManager[None]:
        """Time the iteration of a loader that a framework holds, within the block. `seen` gets each batch first."""
        return _NO_SPAN if self.recorder is None else time_in_place(loader, self, seen)

    def flush(self) -> None:
        """Write all recorded events; return when they are in the file, or after a second."""
        if self.recorder is not None:
            self.recorder.writer.flush()

    def close(self) -> None:
        """Write what was recorded, and record no more."""
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.writer.close()

    def restart_after_fork(self) -> None:
        """Restart the recording in a forked child. The parent writes the events that it had not yet written."""
        if self.recorder is not None:
            self.recorder.writer.discard()
            self.recorder = self._make_recorder()

    def _make_recorder(self) -> Recorder | None:
        settings = self.settings
        if settings.path is None:
            return None
        return Recorder(settings.path, max_bytes=settings.max_bytes, job_name=settings.job_name)


class _ProcessSession:
    """The session of this process, made when it is first asked for."""

    def __init__(self) -> None:
        self.session: AutopilotSession | None = None
        self._making = threading.RLock()

    def get_session(self) -> AutopilotSession:
        """Return the session of the current environment, a new one if that has changed."""
        with self._making:
            settings = read_settings()
            if self.session is None or self.session.settings != settings:
                if self.session is not None:
                    self.session.close()
                self.session = AutopilotSession(settings)
            return self.session

    def restart_after_fork(self) -> None:
        self._making = threading.RLock()
        HERE.step, HERE.loading = None, False
        if self.session is not None:
            self.session.restart_after_fork()


_PROCESS = _ProcessSession()


def init(job_name: str | None = None) -> AutopilotSession:
    """Begin to record this process's run under the name `job_name`, if the environment names a file for it.

    `frx collect` sets that variable, and its `--name` takes precedence over `job_name`. A run without a name needs no
    call of `init`.
    """
    session = _PROCESS.get_session()
    if job_name is not None and session.recorder is not None and session.settings.job_name is None:
        session.recorder.name_job(str(job_name))
    return session


def step_context(step: Any = None, batch: Any = None, model: Any = None, *, kind: str | None = None) -> Step:
    """Record one step of the program: `with frx_graph.step_context(step, batch, model) as this:`.

    Without a `step`, steps are counted. Call `this.record(loss=loss)` in the block. Shapes, strides and dtypes of the
    batch and of the model's parameters are recorded.
    """
    return (_PROCESS.session or _PROCESS.get_session()).step(step, kind, batch=batch, model=model)


def span(phase: str) -> AbstractContextManager[None]:
    """`AutopilotSession.span` of the process's session."""
    return (_PROCESS.session or _PROCESS.get_session()).span(phase)


def instrument_dataloader(loader: Batches) -> Batches:
    """`AutopilotSession.instrument` of the process's session."""
    return (_PROCESS.session or _PROCESS.get_session()).instrument(loader)


def _get_whole_number(given: Any) -> int | None:
    """Return a whole number; None for other values, numbers too large, and a tensor on a device, which would need a
    wait."""
    if getattr(given, "is_cuda", False):
        return None
    try:
        number = operator.index(given)
        return number if -_LARGEST < number < _LARGEST else None
    except Exception:  # noqa: BLE001 - anything can be handed in
        return None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PROCESS.restart_after_fork)
