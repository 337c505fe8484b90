"""When a promoted program gives reason to be measured again: signs that cost next to nothing to see, and prove nothing.

What a sign is worth the program's own next steps show, which then run in turns with the plan and without it
(`frx_graph.monitor.canary`). A sign that has turned out to be nothing has to wait twice as long the next time.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.schedule import Arm

LOOK_STEPS = 32
"""Steps from one look to the next."""
_EARLY_LOOKS = frozenset({1, 2, 4, 8, 16})
"""Steps after which it is looked, too: what a plan does wrong, it most often does from the beginning."""
_WARM_LOOKS = 2
"""Whole looks before step times are usual: memory is reserved, caches fill."""
_USUAL_LOOKS = 3
_LEAK_BYTES = 256 * 2**20
"""By which memory has to have grown since it was usual."""
_LONGEST_WAIT = 1024
"""Looks."""


class Sign(enum.StrEnum):
    """Why a promoted program is measured again."""

    NOT_FINITE = "results or gradients are not finite"
    SLOW = "its steps became slower"
    RECOMPILES = "the program is compiled again and again"
    MEMORY = "memory grows"
    LOSS = "a loss has grown"
    DUE = "it was due"
    PROMISE = "whether it keeps its promise is not to be seen"


@dataclass(frozen=True, slots=True)
class Promised:
    """Median seconds of a step of both arms, as the trial has measured them."""

    baseline_seconds: float
    candidate_seconds: float

    @property
    def ratio(self) -> float:
        """How many times as long the baseline takes."""
        return self.baseline_seconds / self.candidate_seconds


def promised(document: Mapping[str, Any]) -> Promised | None:
    """What a trial's document says of step times; None where it says nothing."""
    seconds: dict[str, list[float]] = {arm: [] for arm in Arm}
    for quad in document.get("samples", ()):
        if not quad["void"]:
            for block in quad["blocks"]:
                seconds[block["arm"]] += block["seconds"]
    if not all(seconds.values()):
        return None
    return Promised(statistics.median(seconds[Arm.BASELINE]), statistics.median(seconds[Arm.CANDIDATE]))


def is_look(step: int) -> bool:
    """Whether it is looked after this step, counted from 1."""
    return step % LOOK_STEPS == 0 or step in _EARLY_LOOKS


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen at a glance after `step` steps: seconds of the steps since the last look, frames that Dynamo has
    compiled since then, bytes that the process (on a GPU: its tensors) holds, and the largest scalar that the program
    has returned, its loss if it computes one."""

    step: int
    seconds: tuple[float, ...]
    frames: int
    held_bytes: int
    loss: float | None = None
    not_finite: bool = False
    """Among the results, or the gradients of an earlier step."""


class Signs:
    """Compares looks with what is usual for this process, and, once, with what was promised."""

    def __init__(self, policy: TrialPolicy, promise: Callable[[], Promised | None], *, whole_steps: bool) -> None:
        """`promise` is asked for when it is first needed. `whole_steps`: the seconds are from step to step, and hold
        more than the program that was tried."""
        self._policy = policy
        self._slower = 1 + policy.minimum_speedup
        self._promise: Callable[[], Promised | None] | None = promise
        self._whole_steps = whole_steps
        self._medians: list[float] = []
        self._usual: float | None = None
        self._usual_bytes: int | None = None
        self._losses: list[float] = []
        self._last_step = 0
        self._next_canary = policy.canary_interval_steps
        self._unproved = False
        self._wait: dict[Sign, int] = {}
        self._quiet: dict[Sign, int] = {}

    def seen(self, look: Look) -> Sign | None:
        """The first sign, in the order in which harm is done."""
        steps = look.step - self._last_step
        self._last_step = look.step
        for sign, there in (
            (Sign.NOT_FINITE, look.not_finite),
            (Sign.RECOMPILES, look.step > 2 and look.frames >= max(2, steps // 2)),
            (Sign.LOSS, self._loss_grew(look.loss)),
            (Sign.SLOW, steps == LOOK_STEPS and self._slow(look)),
            (Sign.MEMORY, steps == LOOK_STEPS and self._grew(look.held_bytes)),
            (Sign.DUE, self._next_canary is not None and look.step >= self._next_canary),
            (Sign.PROMISE, self._unproved),
        ):
            if there and not self._waits(sign):
                return sign
        return None

    def cleared(self, sign: Sign) -> None:
        """It was nothing, or cannot be found out: what was seen is usual from now on."""
        self._wait[sign] = min(2 * self._wait.get(sign, 1), _LONGEST_WAIT)
        self._quiet[sign] = 0 if sign is Sign.DUE else self._wait[sign]
        if sign is Sign.SLOW:
            self._usual = None
            self._medians = self._medians[:_WARM_LOOKS]
        if sign is Sign.MEMORY:
            self._usual_bytes = None
        if sign is Sign.LOSS:
            self._losses = []
        if sign is Sign.DUE and self._policy.canary_interval_steps is not None:
            self._next_canary = self._last_step + self._policy.canary_interval_steps
        if sign is Sign.PROMISE:
            self._unproved = False

    def _waits(self, sign: Sign) -> bool:
        if not self._quiet.get(sign):
            return False
        self._quiet[sign] -= 1
        return True

    def _slow(self, look: Look) -> bool:
        median = statistics.median(look.seconds) if look.seconds else None
        if median is None:
            return False
        if self._usual is not None:
            return median > self._usual * self._slower
        self._medians.append(median)
        if len(self._medians) < _WARM_LOOKS + _USUAL_LOOKS:
            return False
        self._usual = statistics.median(self._medians[_WARM_LOOKS:])
        if self._promise is None:
            return False
        found, self._promise = self._promise(), None
        if found is None:
            return False
        slower = self._usual > found.baseline_seconds
        if not self._whole_steps:
            self._slower = found.ratio
            return slower
        # The program is a part of what takes these seconds, how large a part nobody knows: a step that is shorter than
        # the baseline alone keeps the promise, of others a measurement tells. What the plan saves is the same in both.
        self._unproved = slower
        self._slower = max(self._slower, 1 + (found.baseline_seconds - found.candidate_seconds) / self._usual)
        return False

    def _grew(self, held_bytes: int) -> bool:
        if self._usual_bytes is None:
            if len(self._medians) >= _WARM_LOOKS:
                self._usual_bytes = held_bytes
            return False
        grown = held_bytes - self._usual_bytes
        return grown > max(_LEAK_BYTES, self._policy.memory_headroom * self._usual_bytes)

    def _loss_grew(self, loss: float | None) -> bool:
        if loss is None or not math.isfinite(loss):
            return False
        if len(self._losses) < _USUAL_LOOKS:
            self._losses.append(abs(loss))
            return False
        return abs(loss) > 2 * max(self._losses)
