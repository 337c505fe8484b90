"""Run the arms of a tune's trial: in two processes, one of them always stopped, or in one process after the other."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frx_graph.evidence.run.bundle_layout import EVENTS
from frx_graph.measure.machine import processor_state
from frx_graph.measure.machine.disturbance import watch_others_load
from frx_graph.runs.collect.run_settings import make_folder_variables
from frx_graph.runs.tune.kept_workload import Moment, PausableWorkload
from frx_graph.runs.tune.step_stream import SETTLE_NS, EndedStep, StepStream, compute_block_length, select_block
from frx_graph.trials.configuration_trial import StepBlock
from frx_graph.trials.samples import Cause, Disturbance, load_disturbance
from frx_graph.trials.schedule import Arm

_POLL_SECONDS = 0.02


class ArmEndedError(Exception):
    """An arm ended before its block. `exit_code` is None for an arm that was ended here."""

    def __init__(self, arm: Arm, exit_code: int | None, detail: str) -> None:
        super().__init__(detail)
        self.arm = arm
        self.exit_code = exit_code
        self.detail = detail

    @property
    def failed(self) -> bool:
        """True if the arm did not end regularly, and not because its time was over."""
        return bool(self.exit_code)


@dataclass(frozen=True, slots=True)
class ArmStart:
    """The start of an arm: its command, its environment without the variables that name its files, and its time limit.

    The limit is in seconds, without the time in which the arm is stopped.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    limit_seconds: float
    ignore_load: bool = False
    """True if measurements beside other programs count."""


class LiveArm(contextlib.AbstractContextManager["LiveArm"]):
    """A running arm; a context manager that leaves no process behind. The constructor starts it, and makes `folder` for
    its output and its events."""

    def __init__(self, arm: Arm, start: ArmStart, folder: Path) -> None:
        self.arm = arm
        self._start = start
        (folder / EVENTS).parent.mkdir(parents=True, exist_ok=True)
        # An arm that is restarted also restarts its files.
        (folder / EVENTS).unlink(missing_ok=True)
        self.stream = StepStream(folder / EVENTS)
        self.steps: list[EndedStep] = []
        self._used = 0.0
        self._since: float | None = time.monotonic()
        environment = {**start.environment, **make_folder_variables(folder.resolve())}
        self.workload = PausableWorkload(start.command, environment, folder)

    def __exit__(self, *_: object) -> None:
        self.end()

    def warm_up(self, steps: int) -> None:
        """Let it run until it has made `steps` in all, and stop it. Raises `ArmEndedError`."""
        if self._since is None:
            self._resume()
        self.run_until(lambda: len(self.steps) >= steps)
        self._pause()

    def run_block(self, steps: int) -> StepBlock:
        """Let it run for a block of `steps`, and stop it. Raises `ArmEndedError`."""
        length = compute_block_length(steps, self.stream.workers)
        before, used = _read_throttling(), 0.0
        # Load is the processor time that neither this process nor the arm used.
        with watch_others_load(own_clock=lambda: time.process_time() + used) as load:
            begun = self._resume()
            settled_ns = begun.at_ns + SETTLE_NS
            self.run_until(lambda: self._count_steps_since(settled_ns) >= length.ends)
            stopped = self._pause()
            used = stopped.cpu_seconds - begun.cpu_seconds
            others = load()
        slowed = processor_state.describe_throttling_between(before, _read_throttling())
        disturbance = None if self._start.ignore_load else load_disturbance(others)
        if slowed:
            disturbance = Disturbance(Cause.THROTTLED, slowed)
        found = select_block(self.arm, self.steps, (settled_ns, stopped.at_ns), length)
        assert found is not None
        return replace(found, disturbance=disturbance)

    def end(self) -> None:
        """End all its processes."""
        self.workload.end()
        self.steps += self.stream.read()

    def _count_steps_since(self, at_ns: int) -> int:
        return sum(1 for _ in itertools.takewhile(lambda step: step.end_ns >= at_ns, reversed(self.steps)))

    def run_until(self, enough: Callable[[], bool]) -> None:
        """Let it run until `enough()` is true. Raises `ArmEndedError`."""
        while True:
            over = self.workload.has_ended()
            self.steps += self.stream.read()
            if enough():
                return
            if over:
                code = self.workload.exit_code
                raise ArmEndedError(self.arm, code, _describe_end(code, len(self.steps)))
            if self._get_running_seconds() >= self._start.limit_seconds:
                spent = f"it has run for {self._start.limit_seconds:g} s, all it may: --time-budget-s"
                raise ArmEndedError(self.arm, None, spent)
            time.sleep(_POLL_SECONDS)

    def _get_running_seconds(self) -> float:
        return self._used + (0.0 if self._since is None else time.monotonic() - self._since)

    def _pause(self) -> Moment:
        stopped = self.workload.pause()
        self._used, self._since = self._get_running_seconds(), None
        return stopped

    def _resume(self) -> Moment:
        self._since = time.monotonic()
        return self.workload.resume()


class AlternatingArms(contextlib.ExitStack):
    """Keeps both programs alive; a context manager. Each pair is two fresh processes.

    While one runs a block, the other is stopped, with its data loader's workers and all other child processes.
    """

    def __init__(self, starts: Callable[[Arm], ArmStart], folder: Path, *, warmup: int, steps: int) -> None:
        super().__init__()
        self._starts, self._folder = starts, folder
        self._warmup, self._steps = warmup, steps
        self._living: dict[Arm, LiveArm] = {}
        self._numbers = itertools.count()

    def start_fresh(self, first: Arm) -> None:
        """End running programs, and restart both, `first` first. Raises `ArmEndedError` for one that ends during its
        warm-up."""
        self.close()
        number = next(self._numbers)
        for arm in (first, Arm.CANDIDATE if first is Arm.BASELINE else Arm.BASELINE):
            self._start_arm(arm, number)

    def run_block(self, arm: Arm) -> StepBlock:
        """Raises `ArmEndedError`."""
        return self._living[arm].run_block(self._steps)

    def _start_arm(self, arm: Arm, number: int) -> None:
        living = LiveArm(arm, self._starts(arm), self._folder / f"{number:02d}-{arm}")
        self._living[arm] = self.enter_context(living)
        living.warm_up(self._warmup)


class SuccessiveArms(AlternatingArms):
    """Runs each block in a fresh process, from its start to its end: memory has room for one at a time only."""

    def start_fresh(self, first: Arm) -> None:
        """Every block is fresh."""

    def run_block(self, arm: Arm) -> StepBlock:
        """Raises `ArmEndedError`."""
        with self:
            self._start_arm(arm, next(self._numbers))
            return super().run_block(arm)


def _describe_end(exit_code: int | None, steps: int) -> str:
    if not exit_code:
        return f"it ends after {steps} steps"
    what = f"signal {-exit_code} has ended it" if exit_code < 0 else f"it ends with exit code {exit_code}"
    return f"{what}, after {steps} steps"


def _read_throttling() -> processor_state.CpuThrottling:
    # Without waits for the control group's quota: a workload that wants more than its share always runs like that.
    return replace(processor_state.read_cpu_throttling(), cgroup_periods=None, cgroup_seconds=None)
