"""Check a program with a promoted plan while it runs, and fall back to the baseline if the plan does harm."""

from __future__ import annotations

import enum
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from frx_graph.capture.graph_signature import is_repeatable
from frx_graph.capture.tracing_context import has_saved_tensor_hooks
from frx_graph.compiler.fallback import LazyBaseline
from frx_graph.compiler.pre_autograd import Compiled
from frx_graph.errors import is_out_of_memory
from frx_graph.monitor.canary_steps import CanarySteps
from frx_graph.monitor.checkpointed_calls import CheckpointReplay
from frx_graph.monitor.health_checks import HealthChecks
from frx_graph.monitor.health_signals import PromisedTimes, Signal, find_next_check
from frx_graph.monitor.plan_rollback import PlanControl, RollBack
from frx_graph.monitor.program_pair import Call, CallHistory, Program, ProgramPair, read_versions
from frx_graph.monitor.shadow_run import NOT_FINITE, has_new_nonfinite, has_nonfinite, list_tensors
from frx_graph.monitor.shadow_steps import VALUE_SIGNALS, ShadowSteps
from frx_graph.monitor.step_metrics import StepMetrics
from frx_graph.support.process_state import RandomGenerators
from frx_graph.support.torch_internals import FakeTensor
from frx_graph.trials.environment import find_device
from frx_graph.trials.policy import TrialPolicy


class State(enum.Enum):
    """The mode in which the next step of a monitored program runs."""

    STEADY = "by the plan, with a health check every so many steps"
    FOLLOW_UP = "a signal is followed up: by a shadow run, or by the first step of a canary"
    CANARY = "the plan and the baseline alternate"
    BASELINE = "the plan was given up; this state is final"


class MonitoredProgram:
    """Run the planned program of a graph as long as it does no harm.

    - STEADY: `HealthChecks` looks for signals. Results that are not finite are computed again by the baseline at once;
      any other signal leads to FOLLOW_UP.
    - FOLLOW_UP: a signal about values, or a canary that is due, has the next step computed by both programs
      (`ShadowSteps`). A signal about time, memory or frames, or a shadow run that finds no harm, leads to CANARY.
    - CANARY: steps alternate between both programs (`CanarySteps`), until they show whether the plan is worse.
    - BASELINE: `PlanControl` has given up the plan, after a finding of the above or a failure of the planned program.

    Another thread that calls meanwhile runs by the plan. Calls under the user's saved-tensor hooks are not checked.
    """

    def __init__(
        self,
        pair: ProgramPair,
        *,
        promise: Callable[[], PromisedTimes | None],
        roll_back: RollBack,
        is_withdrawn: Callable[[], bool] = lambda: False,
    ) -> None:
        """Monitor `pair`. `is_withdrawn` tells that the plan was rolled back for another program of the same graph."""
        self.pair = pair
        self.state = State.STEADY
        self._run: Program = self._run_steady
        self._history = CallHistory(pair)
        self._control = PlanControl(pair, self._history, roll_back, lambda: self._enter(State.BASELINE))
        self._health = HealthChecks(pair, self._history, promise)
        signals = self._health.signals
        self._canary = CanarySteps(pair, self._history, self._control, signals, self._resume)
        self._shadow = ShadowSteps(pair, self._history, self._control, signals)
        self._checkpoints = CheckpointReplay(pair.planned)
        self._is_withdrawn = is_withdrawn
        self._signal: Signal | None = None
        self._lock = threading.Lock()
        self._steps = 0
        self._next_check = find_next_check(0)
        # Looked up once, for the sake of ordinary steps.
        self._is_capturing = pair.metrics.is_capturing
        self._read_seconds = pair.metrics.seconds
        self._whole_steps = pair.whole_steps

    def __call__(self, *args: Any) -> Any:
        """Return what the graph computes from `args`."""
        if has_saved_tensor_hooks():
            return self._run_under_hooks(args)
        if self._is_capturing():
            # A CUDA graph is recorded: the device computes nothing yet.
            return self._control.program(*args)
        history = self._history
        if history.free_shadow is not None:
            history.free_shadow()
            history.free_shadow = None
        if history.awaits_backward:
            history.forwards_share_backward = True
        return self._run(*args)

    def _enter(self, state: State) -> None:
        if self.state is not State.BASELINE:
            self.state = state
            self._run = {
                State.STEADY: self._run_steady,
                State.FOLLOW_UP: self._run_follow_up,
                State.CANARY: self._run_canary,
                State.BASELINE: self.pair.run_baseline,
            }[state]
        # Afterwards, so that no other thread finds the state CANARY without one.
        if self.state is not State.CANARY:
            self._canary.end()

    def _resume(self) -> None:
        self._enter(State.STEADY)
        self._health.restart()

    def _run_steady(self, *args: Any) -> Any:
        health = self._health
        began = self._read_seconds()
        if self._whole_steps and health.began is not None:
            health.seconds.append(began - health.began)
        health.began = began
        if self._steps + 1 >= self._next_check:
            return self._run_checked(args, began)
        generators = RandomGenerators(self.pair.metrics.device) if self._history.draws else None
        try:
            result = self._control.program(*args)
        except Exception as error:  # noqa: BLE001 - raised again, unless the baseline computes the call
            return self._control.recover(Call(args, generators), error)
        if not self._whole_steps:
            health.seconds.append(self._read_seconds() - began)
        self._steps += 1
        return result

    def _run_checked(self, args: Sequence[Any], began: float) -> Any:
        if any(isinstance(arg, FakeTensor) for arg in args):
            # DDP's graph optimizer runs the program on fake tensors while it compiles.
            return self._control.program(*args)
        versions, generators = read_versions(args), RandomGenerators(self.pair.metrics.device)
        call = Call(args, generators)
        try:
            result = self._control.program(*args)
        except Exception as error:  # noqa: BLE001 - raised again, unless the baseline computes the call
            self._history.record_writes(versions, args)
            return self._control.recover(call, error)
        self._history.record_writes(versions, args)
        self._control.watch_backward(list_tensors(result))
        if not self._whole_steps:
            self._health.seconds.append(self._read_seconds() - began)
        self._steps += 1
        self._next_check = find_next_check(self._steps)
        self._history.draws |= generators.have_moved()
        return self._check(call, result)

    def _check(self, call: Call, result: Any) -> Any:
        if not self._lock.acquire(blocking=False):
            return result
        try:
            if self._is_withdrawn():
                self._control.give_up()
                return result
            signal = self._health.check(self._steps, call.args, list_tensors(result))
            if signal is Signal.NOT_FINITE and not self._history.written and has_nonfinite(list_tensors(result)):
                return self._recompute(call, result)
            if signal is not None:
                self._signal = signal
                self._enter(State.FOLLOW_UP)
            return result
        except Exception as error:  # noqa: BLE001 - monitoring must not break the program
            self._control.stop(error)
            return result
        finally:
            self._lock.release()

    def _recompute(self, call: Call, result: Any) -> Any:
        expected = call.replay(self.pair.baseline.get_program(call.args))
        if any(map(has_new_nonfinite, list_tensors(expected), list_tensors(result))):
            self._control.fall_back(NOT_FINITE)
        else:
            self._health.signals.clear(Signal.NOT_FINITE)
        return expected

    def _run_follow_up(self, *args: Any) -> Any:
        if not self._lock.acquire(blocking=False):
            return self._control.run(args)
        try:
            signal, self._signal = self._signal, None
            # The next step is an ordinary one, also after an error.
            self._resume()
            if signal is None or not self._history.can_alternate():
                if signal is not None:
                    self._health.signals.clear(signal)
                return self._control.run(args)
            if signal not in VALUE_SIGNALS and not self._canary.try_reserve():
                # If the signal persists at the next check, it is followed up then.
                return self._control.run(args)
            if signal in VALUE_SIGNALS or (signal is Signal.DUE and self.pair.can_repeat(args)):
                result, measures = self._shadow.run(args, signal)
                if measures:
                    self._measure(signal)
                return result
            self._measure(signal)
            return self._control.run(args)
        finally:
            self._lock.release()

    def _measure(self, signal: Signal) -> None:
        self._canary.start(signal)
        self._enter(State.CANARY)

    def _run_canary(self, *args: Any) -> Any:
        if not self._lock.acquire(blocking=False):
            return self._control.run(args)
        try:
            turn = self._canary.begin_turn()
            if turn is not None:
                return self._canary.take_turn(turn, args)
        finally:
            self._lock.release()
        return self._run(*args)

    def _run_under_hooks(self, args: Sequence[Any]) -> Any:
        program = self._control.program
        if not torch.is_grad_enabled():
            return program(*args)
        try:
            result = self._checkpoints.call(program, args)
        except Exception as error:
            if is_out_of_memory(error):
                # The frames hold what was computed so far, which may be the memory that was lacking.
                traceback.clear_frames(error.__traceback__)
                self._control.attribute(args, error)
            raise
        self._control.watch_backward(list_tensors(result))
        return result


def make_monitored_backend(
    planned: Compiled,
    baseline: Compiled,
    *,
    policy: TrialPolicy,
    promise: Callable[[], PromisedTimes | None],
    roll_back: RollBack,
    is_withdrawn: Callable[[], bool],
) -> Compiled:
    """Return a backend that compiles Dynamo graphs by `planned`, monitored, with a fallback compiled by `baseline`."""

    def compile_monitored(dynamo: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> MonitoredProgram:
        # Before the plan rewrites the graph, of which the baseline keeps a copy.
        kept = LazyBaseline(dynamo, inputs, lambda graph, given: baseline(graph, given, **how))
        pair = ProgramPair(
            planned(dynamo, inputs, **how),
            kept,
            policy=policy,
            metrics=StepMetrics(find_device(inputs)),
            train=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in list_tensors(inputs)),
            repeatable=is_repeatable(dynamo),
        )
        return MonitoredProgram(pair, promise=promise, roll_back=roll_back, is_withdrawn=is_withdrawn)

    return compile_monitored
