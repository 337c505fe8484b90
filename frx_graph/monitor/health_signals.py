"""Find signals that a promoted program should be measured again. They are almost free to check, and prove nothing.

After a signal, the program's next steps alternate between the plan and the baseline (`frx_graph.monitor.canary`). After
a false alarm, the same signal has to wait twice as long.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from frx_graph.support.allocator import Allocation
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.schedule import Arm

CHECK_STEPS = 32
"""Steps from one check to the next."""
_EARLY_CHECKS = (1, 2, 4, 8, 16)
"""Early steps that are also checked: most harm by a plan shows from the beginning."""
_WARM_CHECKS = 2
"""Whole intervals that are ignored: memory is reserved, and caches fill."""
_USUAL_CHECKS = 3
"""Intervals that define what is usual."""
_LEAK_BYTES = 256 * 2**20
"""Growth over the usual memory from which on it is a signal."""
_LONGEST_WAIT = 1024
"""Checks."""


class Signal(enum.StrEnum):
    """A reason to measure a promoted program again."""

    NOT_FINITE = "results or gradients are not finite"
    SLOW = "its steps became slower"
    RECOMPILES = "the program is compiled again and again"
    MEMORY = "memory grows"
    LOSS = "a loss has grown"
    DUE = "it was due"
    PROMISE = "whether it keeps its promise is not to be seen"


@dataclass(frozen=True, slots=True)
class PromisedTimes:
    """Median seconds of a step of both arms in the trial."""

    baseline_seconds: float
    candidate_seconds: float


def read_promised_times(document: Mapping[str, Any], allocation: Allocation) -> PromisedTimes | None:
    """Return the step times in a trial's document for processes with this allocation of memory; None if it has none."""
    check = document.get("check") or {}
    measured = check if check.get("allocation") == allocation else document
    seconds: dict[str, list[float]] = {arm: [] for arm in Arm}
    for quad in measured.get("samples", ()):
        if not quad["void"]:
            for block in quad["blocks"]:
                seconds[block["arm"]] += block["seconds"]
    if not all(seconds.values()):
        return None
    return PromisedTimes(statistics.median(seconds[Arm.BASELINE]), statistics.median(seconds[Arm.CANDIDATE]))


def find_next_check(step: int) -> int:
    """Return the first step after `step` that is checked; steps count from 1."""
    return next((early for early in _EARLY_CHECKS if early > step), (step // CHECK_STEPS + 1) * CHECK_STEPS)


@dataclass(frozen=True, slots=True)
class HealthSample:
    """The readings of a check after `step` steps.

    `seconds` is the time of the steps since the last check, `frames` the number that Dynamo has compiled since.
    `held_bytes` is the memory of the process, on a GPU of the tensors. `loss` is the largest scalar that the program
    has returned. `not_finite` refers to the results, or to the gradients of an earlier step.
    """

    step: int
    seconds: tuple[float, ...]
    frames: int
    held_bytes: int
    loss: float | None = None
    not_finite: bool = False


class HealthSignals:
    """Compare samples with what is usual for this process, and, once, with what the trial promised."""

    def __init__(self, policy: TrialPolicy, promise: Callable[[], PromisedTimes | None], *, whole_steps: bool) -> None:
        """Request `promise` when it is first needed. `whole_steps`: seconds cover more than the trial's program."""
        self._policy = policy
        self._slower = 1 + policy.minimum_speedup
        self._promise: Callable[[], PromisedTimes | None] | None = promise
        self._whole_steps = whole_steps
        self._medians: list[float] = []
        self._usual: float | None = None
        self._usual_bytes: int | None = None
        self._losses: list[float] = []
        self._last_step = 0
        self._next_canary = policy.canary_interval_steps
        self._unproved = False
        self._wait: dict[Signal, int] = {}
        self._quiet: dict[Signal, int] = {}

    def evaluate(self, sample: HealthSample) -> Signal | None:
        """Return the most harmful signal that does not have to wait; None if there is none."""
        steps = sample.step - self._last_step
        self._last_step = sample.step
        for signal, there in (
            (Signal.NOT_FINITE, sample.not_finite),
            (Signal.RECOMPILES, sample.step > 2 and sample.frames >= max(2, steps // 2)),
            (Signal.LOSS, self._has_loss_grown(sample.loss)),
            (Signal.SLOW, steps == CHECK_STEPS and self._is_slow(sample)),
            (Signal.MEMORY, steps == CHECK_STEPS and self._has_grown(sample.held_bytes)),
            (Signal.DUE, self._next_canary is not None and sample.step >= self._next_canary),
            (Signal.PROMISE, self._unproved),
        ):
            if there and not self._quiet.get(signal):
                return signal
            if there:
                self._quiet[signal] -= 1
        return None

    def clear(self, signal: Signal) -> None:
        """Take the readings as usual from now on: the signal was a false alarm, or cannot be examined."""
        self._wait[signal] = min(2 * self._wait.get(signal, 1), _LONGEST_WAIT)
        self._quiet[signal] = 0 if signal is Signal.DUE else self._wait[signal]
        if signal is Signal.SLOW:
            self._usual = None
            self._medians = self._medians[:_WARM_CHECKS]
        if signal is Signal.MEMORY:
            self._usual_bytes = None
        if signal is Signal.LOSS:
            self._losses = []
        if signal is Signal.DUE and self._policy.canary_interval_steps is not None:
            self._next_canary = self._last_step + self._policy.canary_interval_steps
        if signal is Signal.PROMISE:
            self._unproved = False

    def _is_slow(self, sample: HealthSample) -> bool:
        if not sample.seconds:
            return False
        median = statistics.median(sample.seconds)
        if self._usual is not None:
            return median > self._usual * self._slower
        self._medians.append(median)
        if len(self._medians) < _WARM_CHECKS + _USUAL_CHECKS:
            return False
        self._usual = statistics.median(self._medians[_WARM_CHECKS:])
        if self._promise is None:
            return False
        found, self._promise = self._promise(), None
        if found is None:
            return False
        slower = self._usual > found.baseline_seconds
        if not self._whole_steps:
            self._slower = found.baseline_seconds / found.candidate_seconds
            return slower
        # The program is a part, of unknown size, of what takes these seconds. A step shorter than the baseline alone
        # keeps the promise; others have to be measured. The plan saves the same seconds in either case.
        self._unproved = slower
        self._slower = max(self._slower, 1 + (found.baseline_seconds - found.candidate_seconds) / self._usual)
        return False

    def _has_grown(self, held_bytes: int) -> bool:
        if self._usual_bytes is None:
            if len(self._medians) >= _WARM_CHECKS:
                self._usual_bytes = held_bytes
            return False
        grown = held_bytes - self._usual_bytes
        return grown > max(_LEAK_BYTES, self._policy.memory_headroom * self._usual_bytes)

    def _has_loss_grown(self, loss: float | None) -> bool:
        if loss is None or not math.isfinite(loss):
            return False
        if len(self._losses) < _USUAL_CHECKS:
            self._losses.append(abs(loss))
            return False
        return abs(loss) > 2 * max(self._losses)
