"""What is read around the steps of a program that runs: clock, memory, frames compiled, what else happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import psutil
import torch

from frx_graph.evidence.compilations import frames_compiled
from frx_graph.trials.block_watch import block_watch, watched
from frx_graph.trials.canary import Footprint
from frx_graph.trials.samples import Disturbance


@dataclass(frozen=True, slots=True)
class StepReading:
    """What is read around steps that run on `device`; `seconds` is the clock."""

    device: torch.device
    seconds: Callable[[], float] = time.perf_counter

    def clock(self) -> float:
        """Seconds, once the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.seconds()

    def capturing(self) -> bool:
        """Whether the device notes what it is given for a CUDA graph instead of doing it: nothing can be read then."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def footprint(self) -> Footprint:
        """Frames compiled so far, and bytes held: by tensors on a GPU, else by the process."""
        on_gpu = self.device.type == "cuda"
        held = torch.cuda.memory_allocated(self.device) if on_gpu else psutil.Process().memory_info().rss
        return Footprint(frames_compiled(), held)

    def disturbances(self) -> AbstractContextManager[Callable[[], Disturbance | None]]:
        """What else happens during a block."""
        return block_watch(watched(self.device))
