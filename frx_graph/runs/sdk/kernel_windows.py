"""Profile some steps of a program with torch's profiler, and write the trace where `frx collect` finds it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frx_graph.errors import summarize_error
from frx_graph.evidence.run.bundle_layout import PROFILER_TRACE
from frx_graph.runs.sdk.event_lines import format_profiler_window
from frx_graph.runs.sdk.recorder import Recorder, read_rank
from frx_graph.runs.sdk.recording_settings import get_output_dir as output_dir_now
from frx_graph.runs.sdk.recording_settings import warn_once
from frx_graph.runs.sdk.session import AutopilotSession
from frx_graph.support.atomic_file import replace_on_success

if TYPE_CHECKING:
    from torch.profiler import profile


_WRITTEN: Counter[Path] = Counter()
"""Number of windows that this process has written, by the path of the first."""


class KernelWindow:
    """A profiled part of a program, as a context manager. Steps of `step_context` or `step()` are marked in the trace;
    after `most_steps` of them the window closes."""

    def __init__(self, folder: Path, most_steps: int | None, *, record_shapes: bool, with_stack: bool) -> None:
        self._folder = folder
        mark = f".rank{rank}" if (rank := read_rank("RANK")) else ""
        self.trace = self._first = folder / f"{PROFILER_TRACE.stem}{mark}{PROFILER_TRACE.suffix}"
        self._most_steps = most_steps
        self._record_shapes = record_shapes
        self._with_stack = with_stack
        self._steps = 0
        self._profiler: profile | None = None
        self._mark: Any = None
        self._recorder: Recorder | None = None

    def __enter__(self) -> KernelWindow:
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - the program continues after any error
            self._profiler = None
            warn_once(f"kernels are not profiled: {summarize_error(error)}")
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def step(self) -> None:
        """End a step and begin the next, in a program that does not use `step_context`."""
        self.end_step()
        self.begin_step()

    def begin_step(self) -> None:
        """Mark the begin of a step."""
        if self._profiler is None or self._mark is not None:
            return
        import torch

        self._mark = torch.profiler.record_function(f"ProfilerStep#{self._steps}")
        self._mark.__enter__()

    def end_step(self) -> None:
        """End the step, marked or not."""
        if self._profiler is None:
            return
        self._leave_mark()
        self._steps += 1
        if self._most_steps is not None and self._steps >= self._most_steps:
            self._close()

    def _leave_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _begin(self) -> None:
        from torch.profiler import profile

        from frx_graph.support.torch_internals import is_profiler_enabled

        if is_profiler_enabled():
            # Torch would end the other one, which belongs to the program.
            raise RuntimeError("another profiler is running")
        profiler = profile(record_shapes=self._record_shapes, with_stack=self._with_stack)
        profiler.start()
        self._profiler = profiler
        self._recorder = AutopilotSession.from_env().recorder
        if self._recorder is not None:
            self._recorder.window = self
            bundle = self._recorder.bundle
            if bundle is not None and self._folder.resolve() == bundle.resolve():
                self.trace = bundle / PROFILER_TRACE.parent / self.trace.name
        self._first = self.trace.resolve()
        if earlier := _WRITTEN[self._first]:
            self.trace = self.trace.with_name(f"{self.trace.stem}.{earlier + 1}{self.trace.suffix}")

    def _close(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        recorder = self._recorder
        if recorder is not None and recorder.window is self:
            recorder.window = None
        try:
            self._leave_mark()
            profiler.stop()
            self.trace.parent.mkdir(parents=True, exist_ok=True)
            with replace_on_success(self.trace) as file:
                profiler.export_chrome_trace(str(file))
            _WRITTEN[self._first] += 1
        except Exception as error:  # noqa: BLE001 - a full disk, or a profiler that has failed
            warn_once(f"the profile is not written to {self.trace}: {summarize_error(error)}")
            return
        if recorder is not None:
            trace, bundle = self.trace.absolute(), recorder.bundle
            path = trace.relative_to(bundle).as_posix() if bundle and trace.is_relative_to(bundle) else None
            told = {"window_state": "exported", "trace": path, "steps": self._steps or self._most_steps}
            recorder.put((format_profiler_window, recorder.get_time_ns(), None, told))


def profile_kernels(
    output_dir: str | Path | None = None,
    steps: int | None = None,
    *,
    record_shapes: bool = True,
    with_stack: bool = False,
) -> KernelWindow:
    """Profile the `with` block, and write `profiler_trace.json` to `output_dir`, completely or not at all.

    The default folder is `FRX_OUTPUT_DIR`, or `frx-job-run`; a recorded run has the trace in its `profiler/` folder.
    Rank 1 of a distributed program (`RANK`, as `torchrun` sets it) writes `profiler_trace.rank1.json`, and so on. The
    second window of a process writes `profiler_trace.2.json`.

    If the program uses `step_context`, or calls `step()` on the yielded window, only the first `steps` steps are
    profiled. Otherwise `steps` is the number of steps in the block.
    """
    folder = output_dir_now() if output_dir is None else Path(output_dir)
    return KernelWindow(folder, steps, record_shapes=record_shapes, with_stack=with_stack)
