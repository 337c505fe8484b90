"""Arms that run, and that are stopped whatever comes between."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from frx_graph.trials.arm_messages import Answering
from frx_graph.trials.arm_process import Limits


class RunningArm(Answering, Protocol):
    """A process, or what stands for one, that answers."""

    @property
    def pid(self) -> int:
        """Its process."""

    @property
    def limits(self) -> Limits:
        """What it may use."""

    def stop(self) -> None:
        """End it, with all that it has started."""


StartArm = Callable[[Limits | None], RunningArm]
"""Starts an arm, with its own limits or under those of the other one of its pair."""


class RunningArms:
    """Starts arms; a context manager that stops them all, also where Ctrl-C comes as soon as one has started."""

    def __init__(self, start: StartArm) -> None:
        self._start = start
        self._arms: list[RunningArm] = []

    def __enter__(self) -> RunningArms:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> RunningArm:
        """One more, under the limits of the first. Raises `ArmError`."""
        self._arms.append(self._start(self._arms[0].limits if self._arms else None))
        return self._arms[-1]

    def stop(self) -> None:
        """End all that run; the next one is the first again."""
        with contextlib.ExitStack() as stack:
            for arm in self._arms:
                stack.callback(arm.stop)
        self._arms.clear()
