"""Decide whether a block of steps measured its program, or a disturbance.

The state is read before and after the block, never between its steps, in the process of the arm that runs them. Three
causes make a block void; the first one found is reported:

- recompiled: torch compiled something in this process (`frx_graph.measure.inductor.compilations`).
- throttled: the device or the processors ran too hot or had their power limited, or the control group's processor time
  was used up (`device_state`, `read_processor_state`).
- loaded: other programs used `DISTURBED_SHARE` of all processors or of the device. Under a quota, this program waited
  for processors that long. The other arm's process waits without using a processor. Its process id is excluded on the
  device, whose samples reach back to before the block.

A state that the system does not report is no disturbance.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch

from frx_graph.measure.inductor.compilations import describe_compiled_between, read_compilations
from frx_graph.measure.machine import device_state, processor_state
from frx_graph.measure.machine.device_state import NvidiaDevice
from frx_graph.measure.machine.disturbance import DISTURBED_SHARE, get_own_seconds, watch_others_load
from frx_graph.measure.machine.nvml_device import find_nvidia_device
from frx_graph.trials.samples import Cause, Disturbance, load_disturbance


@dataclass(frozen=True, slots=True)
class Watched:
    """The device and processes that are watched around each block."""

    device: NvidiaDevice | None
    ours: frozenset[int] = frozenset()
    """Processes whose use of the device does not count: the other arm's."""


def find_watched(device: torch.device, ours: Collection[int] = ()) -> Watched:
    """Return what can be watched for programs on `device`."""
    return Watched(find_nvidia_device(device), frozenset(ours))


@contextlib.contextmanager
def watch_block(what: Watched) -> Iterator[Callable[[], Disturbance | None]]:
    """Yield a function that returns the disturbance of the block up to the call, or None. Call it right after the last
    step, when the device has finished it."""
    compiled = read_compilations()
    held_back = processor_state.read_cpu_throttling()
    throttled = what.device.throttling() if what.device is not None else None
    started = time.time_ns() // 1000
    with watch_others_load(own_clock=get_own_seconds) as load:

        def get_disturbance() -> Disturbance | None:
            others = load()
            if (phases := describe_compiled_between(compiled, read_compilations())) is not None:
                return Disturbance(Cause.RECOMPILED, phases)
            if what.device is not None and throttled is not None:
                reasons = device_state.get_throttling_between(throttled, what.device.throttling())
                if reasons:
                    return Disturbance(Cause.THROTTLED, f"the device: {', '.join(reasons)}")
            if slowed := processor_state.describe_throttling_between(held_back, processor_state.read_cpu_throttling()):
                return Disturbance(Cause.THROTTLED, slowed)
            if (loaded := load_disturbance(others)) is not None:
                return loaded
            if what.device is not None:
                share = what.device.others_share(started, what.ours)
                if share is not None and share >= DISTURBED_SHARE:
                    return Disturbance(Cause.LOADED, f"other programs had {100 * share:.0f} % of the device")
            return None

        yield get_disturbance
