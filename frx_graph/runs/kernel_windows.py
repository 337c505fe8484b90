"""Profiles some steps of a program with torch's profiler, and leaves the trace where `frx collect` finds it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from frx_graph.atomic_file import replaced_when_written
from frx_graph.errors import first_line
from frx_graph.evidence.run.bundle_layout import PROFILER_TRACE
from frx_graph.runs.event_lines import profiler_window
from frx_graph.runs.recording_settings import output_dir as default_output_dir
from frx_graph.runs.session import AutopilotSession
from frx_graph.runs.stderr_warning import say_once

if TYPE_CHECKING:
    from torch.profiler import profile


class KernelWindow:
    """A window that is being profiled. `step()` tells that a step has ended, so that the trace has them, and that the
    window closes after as many as were asked for."""

    def __init__(self, steps: int | None) -> None:
        self._left = steps
        self._profiler: profile | None = None

    def step(self) -> None:
        """A step of the program has ended."""
        if self._profiler is None:
            return
        self._profiler.step()
