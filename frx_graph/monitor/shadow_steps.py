"""Compute one of the user's steps by both programs, and compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frx_graph.monitor.health_signals import HealthSignals, Signal
from frx_graph.monitor.plan_rollback import PlanControl
from frx_graph.monitor.program_pair import Call, CallHistory, ProgramPair
from frx_graph.monitor.shadow_run import ShadowRun, list_tensors
from frx_graph.support.process_state import RandomGenerators
from frx_graph.support.user_warning import warn_user

VALUE_SIGNALS = (Signal.NOT_FINITE, Signal.LOSS)
"""Signals that a comparison of one call's results settles; the others take a canary."""


class ShadowSteps:
    """Run steps by the baseline, and also by the planned program on copies of the written inputs."""

    def __init__(self, pair: ProgramPair, history: CallHistory, control: PlanControl, signals: HealthSignals) -> None:
        self._pair = pair
        self._history = history
        self._control = control
        self._signals = signals
        self._warned_of_memory = False

    def run(self, args: Sequence[Any], signal: Signal) -> tuple[Any, bool]:
        """Return the step's result, by the baseline, and whether a canary is to follow; roll the plan back if it does
        worse. The baseline runs first: if memory does not suffice for both, the plan fails."""
        shadow = self._prepare(args, signal)
        if shadow is None and signal in VALUE_SIGNALS:
            self._signals.clear(signal)
            return self._control.run(args), False
        program, generators = self._pair.baseline.get_program(args), RandomGenerators(self._pair.metrics.device)
        try:
            result = program(*args)
        except Exception as error:
            self._signals.clear(signal)
            if shadow is None and not self._history.can_retry(args):
                raise
            if shadow is not None:
                shadow.restore_inputs()
            return self._control.recover_by_plan(Call(args, generators), error), False
        try:
            if shadow is not None and shadow.run(self._control.program, generators):
                if shadow.has_failed and not self._pair.metrics.is_device_usable():
                    return result, False
                regression = shadow.find_regression(list_tensors(result))
                if regression is not None:
                    self._control.fall_back(regression)
                    return result, False
                if self._pair.train and signal is not Signal.LOSS:
                    self._history.free_shadow = shadow.watch_gradients(list_tensors(result), self._control.fall_back)
            if signal in VALUE_SIGNALS:
                self._signals.clear(signal)
                return result, False
            return result, True
        except Exception as error:  # noqa: BLE001 - monitoring must not break the program
            self._control.stop(error)
            return result, False

    def _prepare(self, args: Sequence[Any], signal: Signal) -> ShadowRun | None:
        if not self._pair.can_repeat(args):
            return None
        try:
            if not self._pair.metrics.can_fit_twice():
                self._warn_of_memory(signal)
                return None
            return ShadowRun(args, self._history.written, self._pair.metrics.device)
        except Exception:  # noqa: BLE001 - monitoring must not break the program
            return None

    def _warn_of_memory(self, signal: Signal) -> None:
        # Warn once, and only if the signal stays unexamined: a canary that is due runs anyway.
        if signal in VALUE_SIGNALS and not self._warned_of_memory:
            self._warned_of_memory = True
            warn_user(
                f"frx does not compare a graph with a promoted plan with its baseline, though {signal.value}: there is "
                "no memory for a step of both"
            )
