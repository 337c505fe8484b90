"""What one process records with: its clock, its writer, and what its batches and models have looked like so far."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from pathlib import Path
from typing import Any

from frx_graph.errors import first_line
from frx_graph.evidence.run.events import SnapshotOf
from frx_graph.runs.batch_layout import MOST_LAYOUTS, BatchLayouts, layout_of
from frx_graph.runs.event_lines import Event, shape_snapshot, system_info, warning
from frx_graph.runs.event_writer import EventWriter
from frx_graph.runs.parameter_layout import WatchedModels
from frx_graph.runs.stderr_warning import say_once


class Recorder:
    """Records to the file at `path`. `epoch` is what to add to `time.perf_counter_ns()` for nanoseconds since the
    epoch: one number for the whole process, so that differences are those of a clock that never jumps."""

    def __init__(self, path: Path, *, max_bytes: int, job_name: str | None) -> None:
        self.epoch = time.time_ns() - time.perf_counter_ns()
        self._job_name = job_name
        self._layouts = BatchLayouts()
        self._models = WatchedModels()
        self._looking = threading.RLock()
        self.writer = EventWriter(path, max_bytes=max_bytes, opening=self._opening)
        self.put = self.writer.put
        self.put_when_ready = self.writer.put_when_ready

    def now(self) -> int:
        """Nanoseconds since the epoch."""
        return time.perf_counter_ns() + self.epoch

    def name_job(self, job_name: str) -> None:
        """The program's own name of what it does."""
        if self._job_name == job_name:
            return
        self._job_name = job_name
        if self.writer.begun:
            self.put(self._system_info())

    def look(self, step: int | None, batch: Any, model: Any) -> int | None:
        """Record what is new about the layout of a step's batch and of its model's parameters; the number of the
        batch's layout, None where it has no tensors or there were too many others."""
        try:
            layout = None if batch is None else self._look_at_batch(step, batch, model)
            if model is not None:
                self._look_at_parameters(step, model)
        except Exception as error:  # noqa: BLE001 - batches and models are the program's own, and may do anything
            say_once(f"layouts of some steps are not recorded: {first_line(error)}")
            return None
        return layout

    def warn(self, message: str) -> None:
        """Note in the stream that something is missing."""
        self.put((warning, self.now(), None, message, None))

    def _look_at_batch(self, step: int | None, batch: Any, model: Any) -> int | None:
        tensors = layout_of(batch)
        if not tensors:
            return None
        known = self._layouts.known(tensors)
        if known is not None:
            return known
        with self._looking:
            layout, new = self._layouts.number(tensors)
        if new and layout is None:
            self.warn(f"batches have more than {MOST_LAYOUTS} different layouts; the others are not recorded")
        elif new:
            training = getattr(model, "training", None)
            name = None if model is None else type(model).__name__
            self.put((shape_snapshot, self.now(), step, SnapshotOf.BATCH, tensors, layout, training, name))
        return layout

    def _look_at_parameters(self, step: int | None, model: Any) -> None:
        watch = self._models.watch(model)
        changed = () if watch is None else watch.changed()
        if watch is not None and changed:
            training = getattr(model, "training", None)
            self.put((shape_snapshot, self.now(), step, SnapshotOf.PARAMETERS, changed, None, training, watch.name))

    def _opening(self) -> tuple[Event, ...] | None:
        return None if _is_loader_worker() else (self._system_info(),)

    def _system_info(self) -> Event:
        torch = sys.modules.get("torch")
        told = {
            "torch": None if torch is None else str(torch.__version__),
            "python": platform.python_version(),
            "device_name": _device_name(torch),
            "job_name": self._job_name,
            "rank": _rank("RANK"),
            "local_rank": _rank("LOCAL_RANK"),
        }
        return system_info, self.now(), None, told


def _is_loader_worker() -> bool:
    """Whether this process makes batches for another one, which records."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _device_name(torch: Any) -> str | None:
    """Of the device that the program uses already; to ask must not begin to use one, which forbids to fork."""
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        return str(torch.cuda.get_device_name())
    except Exception:  # noqa: BLE001 - a device that is lost, or not to be asked now
        return None


def _rank(variable: str) -> int | None:
    """Which of several processes this is, as launchers such as `torchrun` say."""
    given = os.environ.get(variable, "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else None
