"""Read clock, memory, compiled frames and disturbances around the steps of a running program."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from frx_graph.errors import is_out_of_memory
from frx_graph.measure.inductor.compilations import count_compiled_frames
from frx_graph.measure.machine.control_groups import get_available_memory
from frx_graph.measure.machine.nvml_device import find_nvidia_device
from frx_graph.trials.block_watch import watch_block
from frx_graph.trials.samples import Disturbance

_USABLE = 0.9
"""Share of the free memory that allocators can use."""
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Frames that Dynamo has compiled, and bytes held: so far, or by a block."""

    frames: int
    held_bytes: int

    def add_growth(self, before: Footprint, after: Footprint) -> Footprint:
        """Return the sum of this one and the growth in between. Dynamo's counts restart when it is reset."""
        frames = self.frames + max(0, after.frames - before.frames)
        return Footprint(frames, self.held_bytes + after.held_bytes - before.held_bytes)


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Takes readings around steps on `device`; `seconds` is the clock."""

    device: torch.device
    seconds: Callable[[], float] = time.perf_counter

    def read_clock(self) -> float:
        """Return seconds, once the device has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.seconds()

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured, so that the device computes nothing that could be read."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def read_footprint(self) -> Footprint:
        """Return the frames compiled so far, and the bytes held: by tensors on a GPU, else by the process."""
        on_gpu = self.device.type == "cuda"
        held = torch.cuda.memory_allocated(self.device) if on_gpu else psutil.Process().memory_info().rss
        return Footprint(count_compiled_frames(), held)

    def can_fit_twice(self) -> bool:
        """Return whether there is memory for two steps at once, which take at most the peak beyond what is held now, as
        far as the system tells."""
        on_gpu = self.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self.device) if on_gpu else _read_resident_peak()
        return has_room_twice(peak, self.read_footprint().held_bytes, self._read_free_bytes())

    def can_fit(self, copied_bytes: int) -> bool:
        """Return whether there is memory for copies, and as much again for a step; True if the system does not tell."""
        left = self._read_free_bytes()
        return left is None or 2 * copied_bytes <= left

    def is_device_usable(self) -> bool:
        """Return whether the device still works: after a failed assertion or an illegal access no kernel runs."""
        if self.device.type != "cuda":
            return True
        try:
            torch.cuda.synchronize(self.device)
        except torch.AcceleratorError as error:
            return is_out_of_memory(error)
        return True

    def _read_free_bytes(self) -> int | None:
        if self.device.type != "cuda":
            return get_available_memory()
        free, total = torch.cuda.mem_get_info(self.device)
        allowed = int(total * torch.cuda.get_per_process_memory_fraction(self.device))
        reserved = torch.cuda.memory_reserved(self.device)
        return min(free + reserved, allowed) - torch.cuda.memory_allocated(self.device)

    def watch_disturbances(self) -> AbstractContextManager[Callable[[], Disturbance | None]]:
        """Watch for disturbances of a block; the context's value returns the disturbance."""
        return watch_block(find_nvidia_device(self.device))


def has_room_twice(peak_bytes: int | None, held_bytes: int, left_bytes: int | None) -> bool:
    """Return whether twice the peak beyond what is held now is free; True if that is unknown."""
    if peak_bytes is None or left_bytes is None:
        return True
    return 2 * max(0, peak_bytes - held_bytes) <= _USABLE * left_bytes


def _read_resident_peak() -> int | None:
    """Return the most bytes that were ever resident (Linux), from `/proc/self/status`, proc(5)."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
