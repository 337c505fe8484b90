"""A program with a promoted plan, watched while it runs: where the plan does harm, it goes back to the baseline."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

from frx_graph.capture.repeatable_graph import repeatable
from frx_graph.capture.saved_tensor_hooks import has_saved_tensor_hooks
from frx_graph.compiler.baseline import KeptBaseline
from frx_graph.compiler.pre_autograd import Compiled
from frx_graph.errors import first_line
from frx_graph.measure.inductor.compilations import frames_compiled
from frx_graph.monitor.backward_errors import note_failing_backward
from frx_graph.monitor.canary import Canary
from frx_graph.monitor.checkpointed_calls import HookedCalls
from frx_graph.monitor.failure_attribution import Blame, FailureBlame
from frx_graph.monitor.health_signals import Look, Promised, Sign, Signs, is_look
from frx_graph.monitor.measurement_lock import MeasuringPlace
from frx_graph.monitor.shadow_run import (
    NOT_FINITE,
    LiveComparison,
    not_finite,
    tensors,
    when_differentiated,
    worse_than_finite,
)
from frx_graph.monitor.step_metrics import StepReading
from frx_graph.support.out_of_memory import out_of_memory
from frx_graph.support.process_state import Generators
from frx_graph.support.user_warning import warn_and_go_on
from frx_graph.trials.environment import device_of
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.schedule import Arm

_VALUES = (Sign.NOT_FINITE, Sign.LOSS)
"""What results that both programs compute of the same call tell."""
_WHOLE_STEPS = MeasuringPlace()

RollBack = Callable[[str], None]
"""Told that the plan is not used any more in this process, and why, in a line. Does not raise."""


class WatchedProgram:
    """Runs `planned`, and looks at it every so many calls.

    - Where it raises and the baseline does not, or its results or gradients are not finite and the baseline's are, it
      goes back to the baseline, and the call returns the baseline's results if it can be made again.
    - Where steps become slower, memory grows, frames are compiled again and again, a canary is due, or whole steps do
      not show whether it keeps its promise, the next steps run with the plan and without it in turns; it goes back if
      they show that the plan is worse.
    - Where a loss has grown, a step is computed by both, if there is memory for that.

    What must not be computed twice (`_may_repeat`) is watched for its time, memory and frames only; where it raises,
    `FailureBlame` says what follows.
    """

    def __init__(
        self,
        planned: Callable[..., Any],
        baseline: KeptBaseline,
        *,
        policy: TrialPolicy,
        promise: Callable[[], Promised | None],
        train: bool,
        repeatable: bool,
        roll_back: RollBack,
        reading: StepReading,
        withdrawn: Callable[[], bool] = lambda: False,
    ) -> None:
        """`train`: a step has a backward. `repeatable`: a call may be computed twice. `withdrawn`: the plan is rolled
        back for another program of the same graph."""
        self._withdrawn = withdrawn
        self._planned = planned
        self._baseline = baseline
        self._policy = policy
        self._written: frozenset[int] = frozenset()
        # Known from the first step on, which is looked at: who draws nothing pays for nothing at the others.
        self._draws = False
        self._train = train
        self._repeatable = repeatable
        self._blame = FailureBlame(baseline, reading, repeatable=repeatable)
        self._roll_back = roll_back
        self._reading = reading
        # The backward runs later, and on a GPU a call returns before the device has begun.
        self._whole_steps = train or reading.device.type == "cuda"
        self._signs = Signs(policy, promise, whole_steps=self._whole_steps)
        self._sign: Sign | None = None
        self._canary: Canary | None = None
        self._run: Callable[..., Any] = self._steady
        self._lock = threading.Lock()
        self._steps = 0
        self._seconds: list[float] = []
        self._began: float | None = None
        self._frames = frames_compiled()
        self._bad_gradients = False
        self._stop_waiting: Callable[[], None] = lambda: None
        self._awaits_backward = False
        self._forwards_share_a_backward = False
        self._let_go: Callable[[], None] | None = None
        self._given_up = False
        self._notes_backward = False
        self._told_of_memory = False
        self._hooked = HookedCalls(planned)

    @property
    def measuring(self) -> bool:
        """Whether its steps are a canary's."""
        return self._canary is not None

    def __call__(self, *args: Any) -> Any:
        """What the program returns for `args`."""
        if has_saved_tensor_hooks():
            return self._under_hooks(args)
        if self._reading.capturing():
            # The device does nothing yet.
            return self._planned(*args)
        if self._let_go is not None:
            self._let_go()
            self._let_go = None
        if self._awaits_backward:
            self._forwards_share_a_backward = True
        return self._run(*args)

    def _steady(self, *args: Any) -> Any:
        began = self._reading.seconds()
        if self._whole_steps and self._began is not None:
            self._seconds.append(began - self._began)
        self._began = began
        looks = is_look(self._steps + 1)
        if looks and any(isinstance(arg, FakeTensor) for arg in args):
            # DDP's optimizer of graphs asks, while it compiles, what comes out.
            return self._planned(*args)
        before = _versions(args) if looks else ()
        drawn_from = self._generators() if looks or self._draws else None
        try:
            result = self._planned(*args)
        except Exception as error:  # noqa: BLE001 - raised again, unless the baseline computes the call
            if looks:
                self._written |= _changed(before, _versions(args))
            return self._after_failure(args, error, drawn_from)
        if looks:
            self._written |= _changed(before, _versions(args))
            self._note_backward(tensors(result))
        if not self._whole_steps:
            self._seconds.append(self._reading.seconds() - began)
        self._steps += 1
        if not looks:
            return result
        self._draws |= drawn_from is not None and drawn_from.moved()
        return self._looked(args, result, drawn_from)

    def _after_failure(self, args: Sequence[Any], failure: Exception, drawn_from: Generators | None) -> Any:
        """What the baseline gives where the plan's program has failed, if the call can be made again."""
        # What it has computed may be the memory that it has failed for.
        traceback.clear_frames(failure.__traceback__)
        if not self._may_make_again(args):
            self._blamed(args, failure)
            raise failure
        try:
            result = self._again(self._baseline.program(args), args, drawn_from)
        except Exception as error:
            # The program's own, whatever it is.
            raise error from None
        self._back(f"it failed where the baseline does not: {first_line(failure)}")
        return result

    def _blamed(self, args: Sequence[Any], failure: Exception) -> None:
        """The plan's program has failed in a call that cannot be made again: the user gets to know of it. Not the next
        time, unless the baseline fails as well."""
        if not self._given_up:
            written = self._written if self._may_repeat(args) else frozenset(range(len(args)))
            self._heeded(self._blame.of_call(failure, args, written))

    def _heeded(self, blame: Blame | None) -> None:
        if blame is None:
            return
        if blame.recorded:
            self._back(blame.reason)
            return
        self._give_up()
        warn_and_go_on(
            f"frx went back to the baseline for a graph whose plan failed ({blame.reason}): this is not recorded"
        )

    def _note_backward(self, results: Sequence[Tensor]) -> None:
        if self._train and not self._notes_backward:
            self._notes_backward = note_failing_backward(results, self._backward_failed)

    def _backward_failed(self, error: Exception) -> None:
        # Both programs' backwards together may need memory that one does not.
        of_both = out_of_memory(error) and self._let_go is not None
        if not self._given_up and not of_both:
            self._heeded(self._blame.of_backward(error))

    def _under_hooks(self, args: Sequence[Any]) -> Any:
        """A call amid the user's hooks on what autograd saves, which is not watched."""
        if not torch.is_grad_enabled():
            return self._planned(*args)
        try:
            result = self._hooked.call(self._planned, args)
        except Exception as error:
            if out_of_memory(error):
                traceback.clear_frames(error.__traceback__)
                self._blamed(args, error)
            raise
        self._note_backward(tensors(result))
        return result

    def _by_plan(self, args: Sequence[Any]) -> Any:
        """A step that is not looked at."""
        drawn_from = self._generators() if self._draws else None
        try:
            return self._planned(*args)
        except Exception as error:  # noqa: BLE001 - raised again, unless the baseline computes the call
            return self._after_failure(args, error, drawn_from)

    def _followed(self, *args: Any) -> Any:
        """The step after a sign."""
        if not self._lock.acquire(blocking=False):
            return self._by_plan(args)
        try:
            sign, self._sign = self._sign, None
            # Whatever happens, the next step is an ordinary one.
            self._resume()
            if sign is None or not self._may_take_turns():
                if sign is not None:
                    self._signs.cleared(sign)
                return self._by_plan(args)
            if sign in _VALUES:
                return self._by_both(args, sign)
            if self._whole_steps and not _WHOLE_STEPS.taken_for(self):
                # If the sign is still there at the next look, then.
                return self._by_plan(args)
            if sign is Sign.DUE and self._may_repeat(args):
                return self._by_both(args, sign)
            self._measure(sign)
            return self._by_plan(args)
        finally:
            self._lock.release()

    def _measure(self, sign: Sign) -> None:
        """The next steps are a canary's."""
        self._canary = Canary(sign, self._policy, self._reading, whole_steps=self._whole_steps)
        self._run = self._measured

    def _measured(self, *args: Any) -> Any:
        """A step of a canary's, by the program whose turn it is."""
        canary = self._canary
        if canary is None or not self._lock.acquire(blocking=False):
            return self._by_plan(args)
        try:
            if self._canary is canary and self._whole_steps and not _WHOLE_STEPS.kept_by(self):
                canary.abandon()
                # If the sign is still there at the next look, then.
                self._resume()
                return self._by_plan(args)
            arm = _begun(canary) if self._canary is canary else Arm.CANDIDATE
            if self._canary is canary and canary.finding is None:
                return self._turn(canary, arm, args)
            self._found(canary)
        finally:
            self._lock.release()
        return self._run(*args)

    def _turn(self, canary: Canary, arm: Arm, args: Sequence[Any]) -> Any:
        program = self._planned if arm is Arm.CANDIDATE else self._baseline.program(args)
        drawn_from = self._generators() if self._draws else None
        try:
            result = program(*args)
        except BaseException as error:
            canary.abandon()
            self._signs.cleared(canary.sign)
            self._resume()
            if not isinstance(error, Exception):
                raise
            if arm is Arm.CANDIDATE:
                return self._after_failure(args, error, drawn_from)
            if not self._may_make_again(args):
                raise
            return self._after_baselines_failure(args, error, drawn_from)
        _ended(canary)
        self._found(canary)
        return result

    def _may_repeat(self, args: Sequence[Any]) -> bool:
        """Whether the call may be computed twice. In inference mode nobody counts what is written into."""
        return (
            self._repeatable
            and not torch.is_inference_mode_enabled()
            and not any(isinstance(arg, Tensor) and arg.is_inference() for arg in args)
        )

    def _may_make_again(self, args: Sequence[Any]) -> bool:
        """Whether the very call that was made may be: nothing was written into its inputs."""
        return not self._written and self._may_repeat(args)

    def _generators(self) -> Generators:
        return Generators(self._reading.device)

    def _again(self, program: Callable[..., Any], args: Sequence[Any], drawn_from: Generators | None) -> Any:
        """The call that was just made, by another program, which draws the same random numbers."""
        if drawn_from is not None:
            drawn_from.put_back()
        return program(*args)

    def _alone(self, *args: Any) -> Any:
        return self._baseline.program(args)(*args)

    def _looked(self, args: Sequence[Any], result: Any, drawn_from: Generators | None) -> Any:
        if not self._lock.acquire(blocking=False):
            return result
        try:
            if self._withdrawn():
                self._give_up()
                return result
            return self._acted(args, result, self._seen(args, tensors(result)), drawn_from)
        except Exception as error:  # noqa: BLE001 - what watches must not break what is watched
            self._stop(error)
            return result
        finally:
            self._lock.release()

    def _seen(self, args: Sequence[Any], outputs: Sequence[Tensor]) -> Sign | None:
        footprint = self._reading.footprint()
        if not self._may_repeat(args):
            outputs = ()
        losses = [abs(float(value.detach())) for value in outputs if value.dim() == 0 and value.is_floating_point()]
        look = Look(
            self._steps,
            tuple(self._seconds),
            max(0, footprint.frames - self._frames),
            footprint.held_bytes,
            max(losses, default=None),
            self._bad_gradients or not_finite(outputs),
        )
        self._frames, self._seconds, self._bad_gradients = footprint.frames, [], False
        if self._train and outputs:
            self._stop_waiting()
            self._awaits_backward = True
            self._stop_waiting = when_differentiated(args, self._gradients_seen)
        return self._signs.seen(look)

    def _gradients_seen(self, finite: bool) -> None:
        self._awaits_backward = False
        self._bad_gradients = not finite

    def _may_take_turns(self) -> bool:
        """Not where a forward has run between another one and its backward, or may have, and may have written into what
        that one's program has saved: eager's batch norm saves its running statistics, and does not count its own
        writes."""
        one_by_one = self._repeatable and not self._forwards_share_a_backward
        return one_by_one or not (self._train and self._written)

    def _acted(self, args: Sequence[Any], result: Any, sign: Sign | None, drawn_from: Generators | None) -> Any:
        if sign is None:
            return result
        if sign is Sign.NOT_FINITE and not self._written and not_finite(tensors(result)):
            ours = self._again(self._baseline.program(args), args, drawn_from)
            if any(map(worse_than_finite, tensors(ours), tensors(result))):
                self._back(NOT_FINITE)
            else:
                self._signs.cleared(sign)
            return ours
        self._sign = sign
        self._run = self._followed
        return result

    def _by_both(self, args: Sequence[Any], sign: Sign) -> Any:
        """A step that both programs compute. What it returns is the baseline's, which comes first: what it fails for is
        its own, and if there is no memory for both, it is the plan's program that fails."""
        beside = self._beside(args, sign)
        if beside is None and sign in _VALUES:
            self._signs.cleared(sign)
            return self._by_plan(args)
        program, drawn_from = self._baseline.program(args), self._generators()
        try:
            result = program(*args)
        except Exception as error:
            self._signs.cleared(sign)
            if beside is None and not self._may_make_again(args):
                raise
            if beside is not None:
                beside.put_back()
            return self._after_baselines_failure(args, error, drawn_from)
        try:
            if beside is not None and beside.run(self._planned, drawn_from):
                if beside.failed and not self._reading.usable():
                    return result
                worse = beside.worse(tensors(result))
                if worse is not None:
                    self._back(worse)
                    return result
                if self._train and sign is not Sign.LOSS:
                    self._let_go = beside.watch_gradients(tensors(result), self._back)
            if sign in _VALUES:
                self._signs.cleared(sign)
            else:
                self._measure(sign)
        except Exception as error:  # noqa: BLE001 - what watches must not break what is watched
            self._stop(error)
        return result

    def _after_baselines_failure(self, args: Sequence[Any], failure: Exception, drawn_from: Generators | None) -> Any:
        # What it has computed may be the memory that it has failed for.
        traceback.clear_frames(failure.__traceback__)
        try:
            return self._again(self._planned, args, drawn_from)
        except Exception:  # noqa: BLE001 - the program's own, whatever it is
            raise failure from None

    def _beside(self, args: Sequence[Any], sign: Sign) -> LiveComparison | None:
        """The call, for the plan's program to compute beside; None where that cannot be done."""
        if not self._may_repeat(args):
            return None
        try:
            if not self._reading.fits_twice():
                self._tell_of_memory(sign)
                return None
            return LiveComparison(args, self._written, self._reading.device)
        except Exception:  # noqa: BLE001 - what watches must not break what is watched
            return None

    def _tell_of_memory(self, sign: Sign) -> None:
        """Once, where something is not found out for it: what is due is measured all the same."""
        if sign in _VALUES and not self._told_of_memory:
            self._told_of_memory = True
            warn_and_go_on(
                f"frx does not compare a graph with a promoted plan with its baseline, though {sign.value}: there is "
                "no memory for a step of both"
            )

    def _found(self, canary: Canary) -> None:
        if canary.finding is None or self._canary is not canary:
            return
        if canary.finding.regression is not None:
            self._back(canary.finding.regression)
        else:
            self._signs.cleared(canary.sign)
            self._resume()

    def _resume(self) -> None:
        self._canary = None
        self._began = None
        self._frames = frames_compiled()
        self._seconds = []
        self._run = self._steady

    def _stop(self, error: Exception) -> None:
        self._give_up()
        warn_and_go_on(
            f"frx cannot watch a graph with a promoted plan ({first_line(error)}): the baseline runs from now on"
        )

    def _back(self, reason: str) -> None:
        self._give_up()
        self._roll_back(reason)

    def _give_up(self) -> None:
        """From the next call on the baseline runs."""
        self._given_up = True
        self._planned = self._run = self._alone
        self._canary = None


def watching(
    planned: Compiled,
    alone: Compiled,
    *,
    policy: TrialPolicy,
    promise: Callable[[], Promised | None],
    roll_back: RollBack,
    withdrawn: Callable[[], bool],
) -> Compiled:
    """What compiles a graph of Dynamo's by `planned`, and goes back to `alone` where that turns out to be better."""

    def compile(dynamo: fx.GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        baseline = KeptBaseline(dynamo, inputs, lambda graph, given: alone(graph, given, **how))
        return WatchedProgram(
            planned(dynamo, inputs, **how),
            baseline,
            policy=policy,
            promise=promise,
            train=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors(inputs)),
            repeatable=repeatable(dynamo),
            roll_back=roll_back,
            reading=StepReading(device_of(inputs)),
            withdrawn=withdrawn,
        )

    return compile


def _versions(args: Sequence[Any]) -> tuple[int | None, ...]:
    """How often each tensor was written into; None where nobody counts."""
    return tuple(a._version if isinstance(a, Tensor) and not a.is_inference() else None for a in args)


def _changed(before: Sequence[int | None], after: Sequence[int | None]) -> frozenset[int]:
    pairs = enumerate(zip(before, after, strict=True))
    return frozenset(i for i, (old, new) in pairs if old != new)


def _begun(canary: Canary) -> Arm:
    try:
        return canary.begin()
    except Exception:  # noqa: BLE001 - what watches must not break what is watched
        canary.abandon()
        return Arm.CANDIDATE


def _ended(canary: Canary) -> None:
    try:
        canary.end()
    except Exception:  # noqa: BLE001 - what watches must not break what is watched
        canary.abandon()
