"""Decide whether a block of steps measured its program, or a disturbance; the first `Cause` found is reported.

The state is read before and after the block, never between its steps, in the process of the arm that runs them. Other
programs disturb a block that used `DISTURBED_SHARE` of all processors or of the device; under a quota, this program
waited for processors that long. The other arm's process waits without using a processor. It is excluded on the device,
whose samples reach back to before the block. A state that the system does not report does not count as a disturbance.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator

from frx_graph.measure.inductor.compilations import describe_compiled_between, read_compilations
from frx_graph.measure.machine import device_state, processor_state
from frx_graph.measure.machine.device_state import NvidiaDevice
from frx_graph.measure.machine.disturbance import DISTURBED_SHARE, get_own_seconds, watch_others_load
from frx_graph.trials.samples import Cause, Disturbance, load_disturbance


@contextlib.contextmanager
def watch_block(device: NvidiaDevice | None, ours: Collection[int] = ()) -> Iterator[Callable[[], Disturbance | None]]:
    """Yield a function that returns the disturbance of the block up to the call, or None. Call it right after the last
    step, when `device` has finished it. The use of it by `ours`, the other arm's processes, does not count."""
    compiled = read_compilations()
    held_back = processor_state.read_cpu_throttling()
    throttled = device.read_throttling() if device is not None else None
    started = time.time_ns() // 1000
    with watch_others_load(own_clock=get_own_seconds) as load:

        def get_disturbance() -> Disturbance | None:
            others = load()
            if (phases := describe_compiled_between(compiled, read_compilations())) is not None:
                return Disturbance(Cause.RECOMPILED, phases)
            if device is not None and throttled is not None:
                reasons = device_state.get_throttling_between(throttled, device.read_throttling())
                if reasons:
                    return Disturbance(Cause.THROTTLED, f"the device: {', '.join(reasons)}")
            if slowed := processor_state.describe_throttling_between(held_back, processor_state.read_cpu_throttling()):
                return Disturbance(Cause.THROTTLED, slowed)
            if (loaded := load_disturbance(others)) is not None:
                return loaded
            if device is not None:
                share = device.read_others_share(started, frozenset(ours))
                if share is not None and share >= DISTURBED_SHARE:
                    return Disturbance(Cause.LOADED, f"other programs had {100 * share:.0f} % of the device")
            return None

        yield get_disturbance
