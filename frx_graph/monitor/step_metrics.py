"""What is read around the steps of a program that runs: clock, memory, frames compiled, what else happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from frx_graph.measure.inductor.compilations import frames_compiled
from frx_graph.measure.machine.available_memory import available_memory
from frx_graph.monitor.canary import Footprint
from frx_graph.support.out_of_memory import out_of_memory
from frx_graph.trials.block_watch import block_watch, watched
from frx_graph.trials.samples import Disturbance

_USABLE = 0.9
"""Of the memory that is left: the rest is for what allocators cannot use of it."""
_STATUS = Path("/proc/self/status")


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

    def fits_twice(self) -> bool:
        """Whether there is memory for what a step takes and for as much again, as far as the system tells: no step has
        taken more than the most that was ever held."""
        on_gpu = self.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self.device) if on_gpu else _resident_peak()
        return fits_twice(peak, self.footprint().held_bytes, self._left_bytes())

    def fits(self, copied_bytes: int) -> bool:
        """Whether there is memory for copies, and as much again for a step; True where the system does not tell."""
        left = self._left_bytes()
        return left is None or 2 * copied_bytes <= left

    def usable(self) -> bool:
        """Whether the device still does what it is given: once an assertion has failed in a kernel, or memory was
        accessed that is not there, it does not, whatever runs next."""
        if self.device.type != "cuda":
            return True
        try:
            torch.cuda.synchronize(self.device)
        except torch.AcceleratorError as error:
            return out_of_memory(error)
        return True

    def _left_bytes(self) -> int | None:
        if self.device.type != "cuda":
            return available_memory()
        free, total = torch.cuda.mem_get_info(self.device)
        allowed = int(total * torch.cuda.get_per_process_memory_fraction(self.device))
        reserved = torch.cuda.memory_reserved(self.device)
        return min(free + reserved, allowed) - torch.cuda.memory_allocated(self.device)

    def disturbances(self) -> AbstractContextManager[Callable[[], Disturbance | None]]:
        """What else happens during a block."""
        return block_watch(watched(self.device))


def fits_twice(peak_bytes: int | None, held_bytes: int, left_bytes: int | None) -> bool:
    """Whether what was held at most beyond what is held now is left twice; True where that cannot be told."""
    if peak_bytes is None or left_bytes is None:
        return True
    return 2 * max(0, peak_bytes - held_bytes) <= _USABLE * left_bytes


def _resident_peak() -> int | None:
    """Bytes that were resident at most (Linux)."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
