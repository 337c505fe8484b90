"""Run the planned program until it is given up, and handle its failures."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from frx_graph.errors import is_out_of_memory, summarize_error
from frx_graph.monitor.failure_attribution import Attribution, FailureAttribution, report_backward_errors
from frx_graph.monitor.program_pair import Call, CallHistory, Program, ProgramPair
from frx_graph.support.user_warning import warn_user

RollBack = Callable[[str], None]
"""Records that the plan is not used any more, for a reason in one line. Does not raise."""


class PlanControl:
    """Hold the program that steps run by: the planned one, or the baseline once the plan is given up. The baseline
    repeats failed calls where possible; otherwise `FailureAttribution` judges the plan."""

    def __init__(
        self, pair: ProgramPair, history: CallHistory, roll_back: RollBack, on_give_up: Callable[[], None]
    ) -> None:
        """Control the plan of `pair`. `on_give_up` is called whenever the plan is given up."""
        self.program: Program = pair.planned
        self.given_up = False
        self._pair = pair
        self._history = history
        self._roll_back = roll_back
        self._on_give_up = on_give_up
        self._attribution = FailureAttribution(pair.baseline, pair.metrics, repeatable=pair.repeatable)
        self._reports_backward = False

    def run(self, args: Sequence[Any]) -> Any:
        """Compute a step that is neither checked nor measured."""
        call = self._history.begin(args)
        try:
            return self.program(*args)
        except Exception as error:  # noqa: BLE001 - raised again, unless the baseline computes the call
            return self.recover(call, error)

    def recover(self, call: Call, failure: Exception) -> Any:
        """Return the baseline's result of a call in which the plan failed; raise `failure` if it cannot be repeated."""
        # The frames hold what was computed so far, which may be the memory that was lacking.
        traceback.clear_frames(failure.__traceback__)
        if not self._history.can_retry(call.args):
            self.attribute(call.args, failure)
            raise failure
        try:
            result = call.replay(self._pair.baseline.get_program(call.args))
        except Exception as error:
            # The user's program raised this error.
            raise error from None
        self.fall_back(f"it failed where the baseline does not: {summarize_error(failure)}")
        return result

    def recover_by_plan(self, call: Call, failure: Exception) -> Any:
        """Return the plan's result of a call in which the baseline failed; raise `failure` if the plan fails too."""
        # The frames hold what was computed so far, which may be the memory that was lacking.
        traceback.clear_frames(failure.__traceback__)
        try:
            return call.replay(self.program)
        except Exception:  # noqa: BLE001 - the baseline's failure is the program's own
            raise failure from None

    def attribute(self, args: Sequence[Any], failure: Exception) -> None:
        """Give up the plan if `failure`, which the user gets, is attributed to it."""
        if not self.given_up:
            written = self._history.written if self._pair.can_repeat(args) else frozenset(range(len(args)))
            self._follow(self._attribution.attribute_call(failure, args, written))

    def watch_backward(self, results: Sequence[Tensor]) -> None:
        """Attribute errors of the backward of `results`, in this and all later steps."""
        if self._pair.train and not self._reports_backward:
            self._reports_backward = report_backward_errors(results, self._attribute_backward)

    def fall_back(self, reason: str) -> None:
        """Run the baseline from the next call on, and record that the plan is rolled back."""
        self.give_up()
        self._roll_back(reason)

    def stop(self, error: Exception) -> None:
        """Run the baseline from the next call on, since monitoring itself has failed."""
        self.give_up()
        warn_user(
            f"frx cannot watch a graph with a promoted plan ({summarize_error(error)}): the baseline runs from now on"
        )

    def give_up(self) -> None:
        """Run the baseline from the next call on."""
        self.given_up = True
        self.program = self._pair.run_baseline
        self._on_give_up()

    def _attribute_backward(self, error: Exception) -> None:
        # The backwards of a shadow run's two programs may need memory that one alone does not.
        of_both = is_out_of_memory(error) and self._history.free_shadow is not None
        if not self.given_up and not of_both:
            self._follow(self._attribution.attribute_backward(error))

    def _follow(self, attribution: Attribution | None) -> None:
        if attribution is None:
            return
        if attribution.recorded:
            self.fall_back(attribution.reason)
            return
        self.give_up()
        reason = attribution.reason
        warn_user(f"frx went back to the baseline for a graph whose plan failed ({reason}): this is not recorded")
