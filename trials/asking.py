"""How long arms are waited for, and what it says of a trial where one fails.

A failure that may be the moment's, as where the machine was busy or short of memory, is forgiven a candidate once in a
trial: what it was asked is asked again in fresh processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from frx_graph.errors import TrialError
from frx_graph.trials.arm_messages import Answered, Answering, Question, ask
from frx_graph.trials.arm_process import ArmError, Cause
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.schedule import Arm

_LEAST_SECONDS = 1.0
"""For an answer, when the time budget is about to end."""
_TIMES_AS_LONG = 10.0
_OF_THE_MOMENT = frozenset({Cause.NOT_STARTED, Cause.KILLED, Cause.TIMED_OUT, Cause.OUT_OF_MEMORY})
"""What another program may be to blame for."""


class BudgetEnded(Exception):  # noqa: N818 - not an error: the trial ends
    """Nothing is known of what was to be answered. Its text says what that is."""


class CandidateFailed(Exception):  # noqa: N818 - not an error: the trial's result
    """Its text says how. `of_the_moment` says that it may do otherwise at another time."""

    def __init__(self, detail: str, *, of_the_moment: bool) -> None:
        super().__init__(detail)
        self.detail = detail
        self.of_the_moment = of_the_moment


class Asking:
    """Asks the arms of one trial, which ends at `deadline` by `clock`."""

    def __init__(self, policy: TrialPolicy, deadline: float, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._deadline = deadline
        self._clock = clock
        self._took: dict[type, float] = {}
        self._forgiven = ""

    @property
    def forgiven(self) -> str:
        """How the candidate has failed once; empty where it has not."""
        return self._forgiven

    def ask(self, arms: Mapping[Arm, Answering], arm: Arm, question: Question, answered: type[Answered]) -> Answered:
        """The answer of `arm`. Raises what `failure` says, and `BudgetEnded` where there is no time to wait for it."""
        began = self._clock()
        left = max(_LEAST_SECONDS, self._deadline - began)
        # Nothing tells how long the baseline should take: it is waited for as long as there is time.
        took = self._took.get(type(question), 0.0)
        patience = max(self._policy.patience_seconds, _TIMES_AS_LONG * took) if arm is Arm.CANDIDATE else left
        try:
            answer = ask(arms[arm], question, answered, min(patience, left))
        except ArmError as error:
            late = error.cause is Cause.TIMED_OUT
            if late and left <= patience:
                raise BudgetEnded(f"while the {arm} was asked to {question.ask}") from error
            why = f"; the baseline took {took:.0f} s, and patience_seconds is {self._policy.patience_seconds:g}"
            raise self.failure(arm, error, why if late else "") from error
        if arm is Arm.BASELINE:
            self._took[type(question)] = max(self._clock() - began, self._took.get(type(question), 0.0))
        return answer

    def failure(self, arm: Arm, error: ArmError, why: str = "") -> TrialError | CandidateFailed:
        """What an arm's failure says of the trial: without a baseline there is none."""
        if arm is Arm.BASELINE:
            message = f"the baseline does not run: {error.cause}: {error.message}"
            return TrialError(message, error.hint or "run the program by itself first")
        before = f"; before, in other processes: {self._forgiven}" if self._forgiven else ""
        return CandidateFailed(f"{error.cause}: {error}{why}{before}", of_the_moment=error.cause in _OF_THE_MOMENT)

    def forgive(self, failure: CandidateFailed) -> None:
        """Once. Raises `failure` where it is not the moment's, or not the first."""
        if self._forgiven or not failure.of_the_moment:
            raise failure
        self._forgiven = failure.detail
