"""Start arms, ask them with a time limit, and turn their failures into failures of the trial.

A failure may be temporary, for example on a machine that is busy or short of memory. It is forgiven once for each arm
in a trial: the question is asked again in fresh processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Protocol

from frx_graph.errors import TrialError
from frx_graph.trials.arm_messages import Answered, ArmClient, Judge, Question, ask
from frx_graph.trials.arm_process import ArmError, Cause, Limits
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.schedule import Arm
from frx_graph.trials.trial_run import Gate

_LEAST_SECONDS = 1.0
"""Seconds for an answer when the time budget is about to end."""
_TIMES_AS_LONG = 10.0
_OF_THE_MOMENT = frozenset({Cause.NOT_STARTED, Cause.KILLED, Cause.TIMED_OUT, Cause.OUT_OF_MEMORY})
"""Causes that may be another program's fault."""
_MUCH_MEMORY = "to compare takes up to 20 bytes for each parameter, in training up to 80"
"""Measured: see docs/internals/trials.md."""


class RunningArm(ArmClient, Protocol):
    """A process, or a substitute, that answers."""

    @property
    def pid(self) -> int:
        """The id of the arm's process."""

    @property
    def limits(self) -> Limits:
        """The arm's limits."""

    def stop(self) -> None:
        """End it, with all that it has started."""


StartArm = Callable[[Limits | None], RunningArm]
"""Starts an arm, with new limits or with those of the pair's other arm."""


class RunningArms(contextlib.AbstractContextManager["RunningArms"]):
    """Starts arms; a context manager that stops them all, also if Ctrl-C comes as soon as one has started."""

    def __init__(self, start: StartArm) -> None:
        self._start = start
        self._arms: list[RunningArm] = []

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> RunningArm:
        """Start one more arm, with the limits of the first. Raises `ArmError`."""
        self._arms.append(self._start(self._arms[0].limits if self._arms else None))
        return self._arms[-1]

    def stop(self) -> None:
        """End all running arms; the next one is the first again."""
        with contextlib.ExitStack() as stack:
            for arm in self._arms:
                stack.callback(arm.stop)
        self._arms.clear()


class BudgetEnded(Exception):  # noqa: N818 - not an error: the trial ends
    """An answer is missing. The text describes the question."""


class CandidateFailed(Exception):  # noqa: N818 - not an error: the trial's result
    """A candidate failed; the text says how. `of_the_moment` says that it may pass at another time; `gate` is the
    failed gate."""

    def __init__(self, detail: str, *, of_the_moment: bool, gate: Gate = Gate.PROCESS) -> None:
        super().__init__(detail)
        self.detail = detail
        self.of_the_moment = of_the_moment
        self.gate = gate


class BaselineError(TrialError):
    """The baseline failed, so there is no trial. `of_the_moment` has the same meaning as for a candidate."""

    def __init__(self, detail: str, message: str, hint: str, *, of_the_moment: bool) -> None:
        super().__init__(message, hint)
        self.detail = detail
        self.of_the_moment = of_the_moment


class WorkerClient:
    """Asks the arms of one trial, which ends at `deadline` by `clock`."""

    def __init__(self, policy: TrialPolicy, deadline: float, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._deadline = deadline
        self._clock = clock
        self.baseline_seconds: dict[type[Question], float] = {}
        """Longest answer of the baseline to each kind of question, which tells how long to wait for the candidate."""
        self.forgiven: dict[Arm, str] = {}
        """The failure of each arm that was forgiven one."""

    def ask(self, arms: Mapping[Arm, ArmClient], arm: Arm, question: Question, answered: type[Answered]) -> Answered:
        """Return the answer of `arm`; ask the baseline first, whose time limits the candidate's. Raises the exception
        of `make_failure`, and `BudgetEnded` if no time is left."""
        began = self._clock()
        left = max(_LEAST_SECONDS, self._deadline - began)
        # The baseline has no expected time, so it may take all the remaining time.
        took = self.baseline_seconds.get(type(question), 0.0)
        patience = max(self._policy.patience_seconds, _TIMES_AS_LONG * took) if arm is Arm.CANDIDATE else left
        try:
            answer = ask(arms[arm], question, answered, min(patience, left))
        except ArmError as error:
            late = error.cause is Cause.TIMED_OUT
            if late and left <= patience:
                raise BudgetEnded(f"while the {arm} was asked to {question.ask}") from error
            why = f"; the baseline took {took:.0f} s, and patience_seconds is {self._policy.patience_seconds:g}"
            raise self.make_failure(arm, error, why if late else "", judging=isinstance(question, Judge)) from error
        if arm is Arm.BASELINE:
            self.baseline_seconds[type(question)] = max(self._clock() - began, took)
        return answer

    def make_failure(
        self, arm: Arm, error: ArmError, why: str = "", *, judging: bool = False
    ) -> BaselineError | CandidateFailed:
        """Return an arm's failure as the trial's: without a baseline there is no trial. `judging`: it has run before,
        and was asked to compare the results."""
        of_the_moment = error.cause in _OF_THE_MOMENT
        before = self._describe_forgiven(arm)
        if arm is Arm.CANDIDATE:
            return CandidateFailed(f"{error.cause}: {error}{why}{before}", of_the_moment=of_the_moment)
        detail = f"{error.cause}: {error.message}"
        what, hint = "the baseline does not run", error.hint or "run the program by itself first"
        if judging:
            what, hint = "the results cannot be compared", error.hint
            if error.cause in (Cause.OUT_OF_MEMORY, Cause.KILLED):
                hint = f"{_MUCH_MEMORY}: end other programs, or try it where there is more memory"
        return BaselineError(detail, f"{what}: {detail}{before}", hint, of_the_moment=of_the_moment)

    def make_plan_failure(self, fault: str) -> CandidateFailed:
        """Return the failure of a candidate that has made its plan in other processes, but not in this one."""
        detail = f"{fault}, in a process that was to be timed{self._describe_forgiven(Arm.CANDIDATE)}"
        return CandidateFailed(detail, of_the_moment=True, gate=Gate.PLAN)

    def forgive_once(self, failure: CandidateFailed | BaselineError) -> Arm:
        """Forgive each arm once; return the arm. Raises `failure` if its cause may last, or if it is the second."""
        arm = Arm.BASELINE if isinstance(failure, BaselineError) else Arm.CANDIDATE
        if arm in self.forgiven or not failure.of_the_moment:
            raise failure
        self.forgiven[arm] = failure.detail
        return arm

    def _describe_forgiven(self, arm: Arm) -> str:
        return f"; before, in other processes: {self.forgiven[arm]}" if arm in self.forgiven else ""
