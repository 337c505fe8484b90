"""The recorder of one process: its clock, its writer, and the layouts that it has seen."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

from frx_graph.errors import summarize_error
from frx_graph.evidence.run.bundle_layout import EVENTS
from frx_graph.evidence.run.events import SnapshotOf
from frx_graph.runs.sdk.batch_layout import MOST_TENSORS, Layout, count_tensors, read_layout
from frx_graph.runs.sdk.event_lines import Event, format_shapes, format_system_info, format_warning
from frx_graph.runs.sdk.event_writer import EventWriter
from frx_graph.runs.sdk.parameter_layout import WatchedModels
from frx_graph.runs.sdk.recording_settings import warn_once

MOST_LAYOUTS = 256
"""Most layouts that get a number; a loader that pads to the longest text has a few dozen."""


class StepMarks(Protocol):
    """Receives the beginnings and ends of steps."""

    def begin_step(self) -> None:
        """A step begins."""

    def end_step(self) -> None:
        """It has ended."""


class Recorder:
    """Records to the file at `path`.

    Adding `epoch` to `time.perf_counter_ns()` gives nanoseconds since the epoch. It is one number for the whole
    process, so differences between times come from a clock that never jumps.
    """

    def __init__(self, path: Path, *, max_bytes: int, job_name: str | None) -> None:
        self.epoch = time.time_ns() - time.perf_counter_ns()
        self._job_name = job_name
        self._layouts: dict[Layout, int] = {}
        self._has_more_layouts = False
        self._models = WatchedModels()
        self._numbering = threading.RLock()
        self.bundle = path.parents[1] if path.parts[-len(EVENTS.parts) :] == EVENTS.parts else None
        """The folder of the run, if the file belongs to one."""
        self.window: StepMarks | None = None
        """The profile in progress, which marks steps."""
        self.writer = EventWriter(path, max_bytes=max_bytes, opening=self._make_opening_events)
        self.put = self.writer.put
        self.put_when_ready = self.writer.put_when_ready

    def get_time_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return time.perf_counter_ns() + self.epoch

    def name_job(self, job_name: str) -> None:
        """Set the run's name, as the program chose it."""
        if self._job_name == job_name:
            return
        self._job_name = job_name
        if self.writer.begun:
            self.put(self._make_system_event())

    def record_layouts(self, step: int | None, batch: Any, model: Any) -> int | None:
        """Record new layouts of a step's batch and of the model's parameters. Return the number of the batch's layout;
        None if it has no tensors, or there were too many layouts."""
        try:
            layout = None
            if batch is not None:
                tensors = read_layout(batch)
                layout = self._layouts.get(tensors)
                if layout is None and tensors:
                    layout = self._number_layout(step, tensors, batch, model)
            if (
                model is not None
                and (watch := self._models.get_due_watch(model)) is not None
                and (changed := watch.find_changed())
            ):
                of = SnapshotOf.PARAMETERS
                training = _get_training_mode(model)
                self.put((format_shapes, self.get_time_ns(), step, of, changed, None, training, watch.name, None))
            return layout
        except Exception as error:  # noqa: BLE001 - the program's batches and models may raise anything
            warn_once(f"layouts of some steps are not recorded: {summarize_error(error)}")
            return None

    def _number_layout(self, step: int | None, tensors: Layout, batch: Any, model: Any) -> int | None:
        with self._numbering:
            if (known := self._layouts.get(tensors)) is not None:
                return known
            if len(self._layouts) == MOST_LAYOUTS:
                if not self._has_more_layouts:
                    self._has_more_layouts = True
                    message = f"batches have more than {MOST_LAYOUTS} different layouts; the others are not recorded"
                    self.put((format_warning, self.get_time_ns(), None, message, None, None))
                return None
            layout = self._layouts[tensors] = len(self._layouts)
        name = None if model is None else type(model).__name__
        count = len(tensors) if len(tensors) < MOST_TENSORS else count_tensors(batch)
        of, training = SnapshotOf.BATCH, _get_training_mode(model)
        self.put((format_shapes, self.get_time_ns(), step, of, tensors, layout, training, name, count))
        return layout

    def _make_opening_events(self) -> tuple[Event, ...] | None:
        # A worker process of a data loader makes batches for its parent, which records.
        data = sys.modules.get("torch.utils.data")
        return None if data is not None and data.get_worker_info() is not None else (self._make_system_event(),)

    def _make_system_event(self) -> Event:
        torch = sys.modules.get("torch")
        told = {
            "torch": None if torch is None else str(torch.__version__),
            "python": platform.python_version(),
            "device_name": _get_device_name(torch),
            "job_name": self._job_name,
            "rank": read_rank("RANK"),
            "local_rank": read_rank("LOCAL_RANK"),
        }
        return format_system_info, self.get_time_ns(), None, told


def _get_training_mode(model: Any) -> bool | None:
    training = getattr(model, "training", None)
    return training if isinstance(training, bool) else None


def _get_device_name(torch: Any) -> str | None:
    """Return the name of the device in use; asking must not initialise one, which would forbid to fork."""
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        return str(torch.cuda.get_device_name())
    except Exception:  # noqa: BLE001 - the device may be lost or unavailable
        return None


def read_rank(variable: str) -> int | None:
    """Return the rank in this variable, as launchers such as `torchrun` set it, or None."""
    given = os.environ.get(variable, "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else None
