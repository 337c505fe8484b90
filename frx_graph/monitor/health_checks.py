"""Check a monitored program at intervals: times, memory, compiled frames, loss, results and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from frx_graph.measure.inductor.compilations import count_compiled_frames
from frx_graph.monitor.health_signals import HealthSample, HealthSignals, PromisedTimes, Signal
from frx_graph.monitor.program_pair import CallHistory, ProgramPair
from frx_graph.monitor.shadow_run import call_after_backward, has_nonfinite


class HealthChecks:
    """Compare readings since the last check with the usual ones; without results and gradients for a call that must not
    be computed twice."""

    def __init__(self, pair: ProgramPair, history: CallHistory, promise: Callable[[], PromisedTimes | None]) -> None:
        self.signals = HealthSignals(pair.policy, promise, whole_steps=pair.whole_steps)
        self.seconds: list[float] = []
        """Durations of the steps since the last check."""
        self.began: float | None = None
        """Clock when the last step began."""
        self._pair = pair
        self._history = history
        self._frames = count_compiled_frames()
        self._bad_gradients = False
        self._stop_waiting: Callable[[], None] = lambda: None

    def restart(self) -> None:
        """Forget the steps since the last check, as after a canary."""
        self.began = None
        self._frames = count_compiled_frames()
        self.seconds = []

    def check(self, step: int, args: Sequence[Any], outputs: Sequence[Tensor]) -> Signal | None:
        """Return the signal that follows up step number `step`, which returned `outputs`; None if there is none."""
        footprint = self._pair.metrics.read_footprint()
        if not self._pair.can_repeat(args):
            outputs = ()
        losses = [abs(float(value.detach())) for value in outputs if value.dim() == 0 and value.is_floating_point()]
        sample = HealthSample(
            step,
            tuple(self.seconds),
            max(0, footprint.frames - self._frames),
            footprint.held_bytes,
            max(losses, default=None),
            self._bad_gradients or has_nonfinite(outputs),
        )
        self._frames, self.seconds, self._bad_gradients = footprint.frames, [], False
        if self._pair.train and outputs:
            self._stop_waiting()
            self._history.awaits_backward = True
            self._stop_waiting = call_after_backward(args, self._record_gradients)
        return self.signals.evaluate(sample)

    def _record_gradients(self, finite: bool) -> None:
        self._history.awaits_backward = False
        self._bad_gradients = not finite
