"""Answers that are none are the arm's failure, not ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from frx_graph.trials.arm_messages import Measure, Measured, Warm, Warmed, ask
from frx_graph.trials.arm_process import ArmError, Cause


class Saying:
    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer

    def begin(self, message: Mapping[str, Any]) -> None:
        pass

    def ask(self, message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        return self.answer


def test_an_answer_of_the_right_kind() -> None:
    assert ask(Saying({"seconds": [0.5]}), Measure(1), Measured, 1.0) == Measured((0.5,))


@pytest.mark.parametrize("answer", [{}, {"seconds": "soon"}, {"seconds": [1.0], "disturbance": 7}])
def test_an_answer_of_another(answer: dict[str, Any]) -> None:
    with pytest.raises(ArmError, match="sent an invalid answer") as failure:
        ask(Saying(answer), Measure(1), Measured, 1.0)
    assert failure.value.cause is Cause.RAISED


def test_error_names_the_wrong_field() -> None:
    graphs = [{"signature": "a"}, {"signature": 7}]
    with pytest.raises(ArmError, match=r"graphs\.1\.signature"):
        ask(Saying({"seconds": 1.0, "graphs": graphs}), Warm(1), Warmed, 1.0)
