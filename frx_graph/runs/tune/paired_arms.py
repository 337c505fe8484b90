"""Run the blocks of a trial in two processes, one of them always stopped, or in one process after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from frx_graph.runs.tune.live_arm import ArmStart, LiveArm
from frx_graph.trials.configuration_trial import StepBlock
from frx_graph.trials.schedule import Arm

Starts = Callable[[Arm], ArmStart]


class AlternatingArms:
    """Keeps both programs alive; a context manager. Each pair is two fresh processes.

    While one runs a block, the other is stopped, with its data loader's workers and all other child processes.
    """

    def __init__(self, starts: Starts, folder: Path, *, warmup: int, steps: int) -> None:
        self._starts, self._folder = starts, folder
        self._warmup, self._steps = warmup, steps
        self._living: dict[Arm, LiveArm] = {}
        self._count = 0

    def __enter__(self) -> AlternatingArms:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def start_fresh(self, first: Arm) -> None:
        """Raises `ArmEndedError` for an arm that ends during its warm-up."""
        self._end()
        second = Arm.CANDIDATE if first is Arm.BASELINE else Arm.BASELINE
        for arm in (first, second):
            self._living[arm] = LiveArm(arm, self._starts(arm), self._folder / f"{self._count:02d}-{arm}")
            self._living[arm].warm_up(self._warmup)
        self._count += 1

    def run_block(self, arm: Arm) -> StepBlock:
        """Raises `ArmEndedError`."""
        return self._living[arm].run_block(self._steps)

    def _end(self) -> None:
        with contextlib.ExitStack() as ends:
            while self._living:
                ends.callback(self._living.popitem()[1].end)


class SuccessiveArms:
    """Runs each block in a fresh process, from its start to its end: memory has room for one at a time only."""

    def __init__(self, starts: Starts, folder: Path, *, warmup: int, steps: int) -> None:
        self._starts, self._folder = starts, folder
        self._warmup, self._steps = warmup, steps
        self._count = 0

    def __enter__(self) -> SuccessiveArms:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def start_fresh(self, first: Arm) -> None:
        """Every block is fresh."""

    def run_block(self, arm: Arm) -> StepBlock:
        """Raises `ArmEndedError`."""
        folder = self._folder / f"{self._count:02d}-{arm}"
        self._count += 1
        with LiveArm(arm, self._starts(arm), folder) as living:
            living.warm_up(self._warmup)
            return living.run_block(self._steps)
