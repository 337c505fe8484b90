"""Run a canary on the user's steps, each by the program whose turn it is."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from frx_graph.monitor.canary import Canary
from frx_graph.monitor.health_signals import HealthSignals, Signal
from frx_graph.monitor.plan_rollback import PlanControl
from frx_graph.monitor.program_pair import CallHistory, ProgramPair
from frx_graph.trials.schedule import Arm

_MAX_REFUSALS = 4
"""Requests in a row without a step of the holder, which may never be called again, like an evaluation's program."""


class MeasurementLock:
    """Allow one canary of whole steps at a time, since two would measure each other's turns. It is free once its holder
    measures no more, is gone, or makes no steps while others ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: weakref.ref[CanarySteps] | None = None
        self._refusals = 0

    def acquire(self, holder: CanarySteps) -> bool:
        """Take the lock for a canary that starts at once; return False if it is not free."""
        with self._lock:
            other = None if self._holder is None else self._holder()
            if other is not None and other.is_measuring and self._refusals < _MAX_REFUSALS:
                self._refusals += 1
                return False
            self._holder = weakref.ref(holder)
            self._refusals = 0
            return True

    def renew(self, holder: CanarySteps) -> bool:
        """Keep the lock for another step; return False if another holder has taken it since."""
        with self._lock:
            kept = self._holder is not None and self._holder() is holder
            if kept:
                self._refusals = 0
            return kept


_WHOLE_STEPS = MeasurementLock()


@dataclass(frozen=True, slots=True)
class Turn:
    """The program that runs the next step of a canary."""

    canary: Canary
    arm: Arm


@dataclass(eq=False)
class CanarySteps:
    """Alternate steps between both programs until the canary has a finding, in one thread at a time. `resume` is called
    when it is over and the plan stays, and calls `end`."""

    _pair: ProgramPair
    _history: CallHistory
    _control: PlanControl
    _signals: HealthSignals
    _resume: Callable[[], None]
    _canary: Canary | None = None

    @property
    def is_measuring(self) -> bool:
        """True while a canary is under way."""
        return self._canary is not None

    def try_reserve(self) -> bool:
        """Return whether a canary may start: no other program measures whole steps."""
        return not self._pair.whole_steps or _WHOLE_STEPS.acquire(self)

    def start(self, signal: Signal) -> None:
        """Begin a canary with the next step."""
        self._canary = Canary(signal, self._pair.policy, self._pair.metrics, whole_steps=self._pair.whole_steps)

    def end(self) -> None:
        """Measure no further."""
        self._canary = None

    def begin_turn(self) -> Turn | None:
        """Return the turn of the step that begins now; None if the canary is over."""
        canary = self._canary
        if canary is None:
            return None
        if self._pair.whole_steps and not _WHOLE_STEPS.renew(self):
            canary.abandon()
            # If the signal persists at the next check, another canary starts then.
            self._resume()
            return None
        arm = Arm.CANDIDATE
        try:
            arm = canary.begin()
        except Exception:  # noqa: BLE001 - monitoring must not break the program
            canary.abandon()
        if canary.finding is None:
            return Turn(canary, arm)
        self._conclude(canary)
        return None

    def take_turn(self, turn: Turn, args: Sequence[Any]) -> Any:
        """Compute the step by the program whose turn it is. A failure ends the canary, and clears its signal."""
        program = self._control.program if turn.arm is Arm.CANDIDATE else self._pair.baseline.get_program(args)
        call = self._history.begin(args)
        try:
            result = program(*args)
        except BaseException as error:
            turn.canary.abandon()
            self._signals.clear(turn.canary.signal)
            self._resume()
            if not isinstance(error, Exception):
                raise
            if turn.arm is Arm.CANDIDATE:
                return self._control.recover(call, error)
            if not self._history.can_retry(args):
                raise
            return self._control.recover_by_plan(call, error)
        try:
            turn.canary.end()
        except Exception:  # noqa: BLE001 - monitoring must not break the program
            turn.canary.abandon()
        self._conclude(turn.canary)
        return result

    def _conclude(self, canary: Canary) -> None:
        if canary.finding is None or self._canary is not canary:
            return
        if canary.finding.regression is not None:
            self._control.fall_back(canary.finding.regression)
        else:
            self._signals.clear(canary.signal)
            self._resume()
