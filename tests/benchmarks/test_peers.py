"""The comparison with peers: its figures, its turns, and an arm's process."""

from __future__ import annotations

import json
from typing import ClassVar

import peers
import pytest
import torch
from peers import ArmProcess, ArmTimes, CaseTimes, main, measure_case
from peers_arm import Family, Request, measure_steps

from frx_graph.support.allocator import Allocation

REQUEST = Request("", "custom_between", 1, "fp32", 1, Allocation.DEFAULT)


def timed(arm: str, family: Family, *wall_s: float) -> ArmTimes:
    return ArmTimes(arm, family, wall_s, wall_s, (0.0,) * len(wall_s))


def case(*arms: ArmTimes) -> CaseTimes:
    return CaseTimes("net", 1, "fp32", 1, Allocation.DEFAULT, arms, 0, None)


def test_the_best_arm_of_each_side_is_compared_round_by_round() -> None:
    found = case(
        timed("inductor", Family.TORCH, 8.0, 8.0, 16.0),
        timed("frx", Family.FRX, 4.0, 4.0, 8.0),
        timed("frx frozen", Family.FRX, 9.0, 9.0, 9.0),
        timed("onnxruntime", Family.PEER, 3.0, 3.0, 6.0),
        timed("openvino", Family.PEER, 5.0, 5.0, 5.0),
    )
    assert found.over_peer == pytest.approx(0.75)
    assert found.over_inductor == pytest.approx(2.0)


def test_an_arm_that_failed_is_no_best_one() -> None:
    broken = ArmTimes("openvino", Family.PEER, error="wrong output 0")
    found = case(timed("frx", Family.FRX, 4.0), broken)
    assert found.find_best(Family.PEER) is None
    assert found.over_peer is None
    assert found.over_inductor is None


def test_steps_are_measured_one_by_one() -> None:
    made: list[int] = []

    def step() -> list[torch.Tensor]:
        made.append(1)
        return []

    found = measure_steps(step, 3)
    assert len(made) == len(found["wall_s"]) == 3
    assert found["cpu_s"] >= 0


class FakeProcess:
    """Answers at once, and notes who was asked."""

    asked: ClassVar[list[str]] = []

    def __init__(self, request: Request) -> None:
        self.arm = request.arm

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_cpu_seconds(self) -> float:
        return 0.0

    def read_answer(self) -> dict[str, object]:
        if self.arm == "openvino":
            return {"error": "wrong output 0"}
        return {"loaded_s": 1.0, "step_s": 0.1}

    def ask(self, *, steps: int) -> dict[str, object]:
        self.asked.append(self.arm)
        return {"wall_s": [0.2] * steps, "cpu_s": 0.1, "faults": 3.0}


def test_arms_take_turns_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ArmProcess", FakeProcess)
    monkeypatch.setattr(peers, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(peers, "compute_limit", lambda request: None)
    FakeProcess.asked.clear()
    found = measure_case(REQUEST, ["inductor", "frx", "openvino"], 2, 0.3, profile=False)
    assert FakeProcess.asked == ["inductor", "frx", "frx", "inductor"]
    assert [arm.error for arm in found.arms] == [None, None, "wrong output 0"]
    assert found.arms[1].wall_s == (0.2, 0.2)
    assert found.arms[1].faults == (3.0, 3.0)


def test_an_unknown_arm_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--arms", "tvm"])
    assert ended.value.code == 2
    assert "tvm" in capsys.readouterr().err


@pytest.mark.integration
def test_a_process_runs_its_arm_and_says_what_is_wrong() -> None:
    with ArmProcess(Request("eager", "custom_between", 1, "fp32", 1, Allocation.DEFAULT)) as process:
        assert process.read_answer()["step_s"] > 0
        found = process.ask(steps=2)
        assert len(json.loads(json.dumps(found))["wall_s"]) == 2
    with ArmProcess(Request("onnxruntime", "custom_between", 1, "bf16", 1, Allocation.DEFAULT)) as process:
        assert "bf16" in process.read_answer()["error"]
