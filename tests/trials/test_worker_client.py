"""Whatever comes between, arms that were started are stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from frx_graph.trials.arm_process import Limits
from frx_graph.trials.worker_client import RunningArms


class Arm:
    def __init__(self, limits: Limits | None, error: BaseException | None = None) -> None:
        self.given = limits
        self.limits = limits or Limits(memory_bytes=7)
        self.error = error
        self.stopped = 0
        self.pid = 1

    def begin(self, *_: object) -> None:
        pass

    def ask(self, *_: object, **__: object) -> dict[str, Any]:
        return {}

    def stop(self) -> None:
        self.stopped += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def untraced() -> Iterator[None]:
    before = sys.gettrace()
    yield
    sys.settrace(before)


def test_those_of_a_pair_have_the_same_limits() -> None:
    with RunningArms(Arm) as running:
        first, second = running.start(), running.start()
        assert isinstance(first, Arm)
        assert isinstance(second, Arm)
        assert first.given is None
        assert second.given is first.limits
        running.stop()
        third = running.start()
        assert isinstance(third, Arm)
        assert third.given is None


def test_all_are_stopped_though_one_cannot_be() -> None:
    arms: list[Arm] = []

    def start(limits: Limits | None) -> Arm:
        arms.append(Arm(limits, KeyboardInterrupt()))
        return arms[-1]

    with pytest.raises(KeyboardInterrupt), RunningArms(start) as running:
        running.start()
        running.start()
    assert [arm.stopped for arm in arms] == [1, 1]


def test_ctrl_c_as_soon_as_one_has_started(untraced: None) -> None:
    """In the first line of ours that runs after it."""
    arms: list[Arm] = []

    def start(limits: Limits | None) -> Arm:
        arms.append(Arm(limits))
        return arms[-1]

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and arms and frame.f_code not in (start.__code__, Arm.__init__.__code__):
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    with pytest.raises(KeyboardInterrupt), RunningArms(start) as running:
        sys.settrace(interrupt)
        running.start()
    assert [arm.stopped for arm in arms] == [1]
