"""What is counted in which process, on processes that the tests make up, and once on real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from frx_graph.advisor import allocation_cost
from frx_graph.advisor.allocation_cost import measure_allocation_cost
from frx_graph.measure.page_faults import AllocationCost, PageFaults
from frx_graph.records import Refusal
from frx_graph.support.allocator import POOLING_VARIABLES, Allocation, read_allocation
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import TargetWorkload
from frx_graph.trials.arm_process import ArmError, Cause
from frx_graph.trials.environment import read_trial_environment
from frx_graph.trials.environment_record import TrialEnvironment

WORKLOAD = TargetWorkload("models.py:build")
LOADED = {"cause": "loaded", "detail": "other programs had 50 %"}


class FakeProcess:
    """Answers with `faults`, and step times of `seconds`."""

    environment: Mapping[str, Any]

    def __init__(self, pid: int, faults: int | None, seconds: float, disturbance: Any = None) -> None:
        self.pid = pid
        self.faults = faults
        self.seconds = seconds
        self.disturbance = disturbance
        self.asked: list[str] = []
        self.stopped = False

    def ask(self, message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        assert not self.stopped
        self.asked.append(message["ask"])
        match message["ask"]:
            case "load":
                assert (message["inner"], message["proposes"], message["candidates"]) == ("inductor", None, [])
                return {"random": False, "environment": self.environment}
            case "warm":
                return {"seconds": 1.0, "graphs": []}
            case "count_faults":
                counted = None if self.faults is None else {"calls": [self.faults] * 3, "page_bytes": 4096}
                return {"faults": counted}
            case "measure":
                return {"seconds": [self.seconds] * message["steps"], "disturbance": self.disturbance}
        raise AssertionError(message)

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AllocationCost | Refusal]:
    """`measure(process, process, ...)` starts these in turn; the last that is started is in `started`."""
    environment = TypeAdapter(TrialEnvironment).dump_python(read_trial_environment(torch.device("cpu")), mode="json")
    monkeypatch.setattr(FakeProcess, "environment", environment, raising=False)
    monkeypatch.setattr(allocation_cost, "read_allocation", lambda: Allocation.DEFAULT)

    def run(*processes: FakeProcess, compare_times: bool = True, variables: Any = None) -> AllocationCost | Refusal:
        waiting = list(processes)

        def start(environment: Mapping[str, str]) -> FakeProcess:
            if variables is not None:
                variables.append(dict(environment))
            return waiting.pop(0)

        found = measure_allocation_cost(WORKLOAD, start, train=False, inner="inductor", compare_times=compare_times)
        assert not waiting
        assert all(process.stopped for process in processes)
        return found

    return run


def test_the_same_program_with_pooled_memory_beside_it(measure) -> None:
    variables: list[dict[str, str]] = []
    default, pooled = FakeProcess(1, 4000, 0.010), FakeProcess(2, 0, 0.008)
    # Of one program, each process has times of its own.
    more = FakeProcess(3, 4000, 0.010), FakeProcess(4, 0, 0.009), FakeProcess(5, 4000, 0.010), FakeProcess(6, 0, 0.007)

    found = measure(default, pooled, *more, variables=variables)

    assert variables == [{}, dict(POOLING_VARIABLES)] * 3
    assert found.default == PageFaults((4000,) * 3, 4096)
    assert found.pooled == PageFaults((0,) * 3, 4096)
    assert (found.processes, found.disturbance) == (1, "")
    assert found.saved_pct == pytest.approx([20.0, 10.0, 30.0])
    assert pooled.asked == ["load", "warm", "count_faults", *["measure"] * 4]


def test_another_process_is_counted_if_one_has_few(measure) -> None:
    found = measure(FakeProcess(1, 4, 0.1), FakeProcess(2, 0, 0.1), FakeProcess(3, 2274, 0.1), compare_times=False)
    assert found == AllocationCost(PageFaults((2274,) * 3, 4096), processes=3)


def test_a_program_whose_processes_all_have_few(measure) -> None:
    found = measure(*(FakeProcess(pid, 7, 0.1) for pid in range(3)))
    assert found == AllocationCost(PageFaults((7,) * 3, 4096), processes=3)


def test_times_are_not_claimed_beside_other_programs(measure) -> None:
    found = measure(FakeProcess(1, 4000, 0.010), FakeProcess(2, 0, 0.008, LOADED))
    assert (found.saved_pct, found.disturbance) == ((), "loaded: other programs had 50 %")


def test_a_system_that_does_not_count(measure) -> None:
    found = measure(FakeProcess(1, None, 0.1))
    assert found == Refusal("page faults", "not counted: the system does not report them")


def test_a_program_that_fails(measure) -> None:
    class Failing(FakeProcess):
        def ask(self, message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
            raise ArmError(Cause.RAISED, "no such file: models.py")

    assert measure(Failing(1, 0, 0.1)) == Refusal("page faults", "not counted: no such file: models.py")


@pytest.mark.parametrize(
    ("allocation", "reason"),
    [
        (Allocation.CHOSEN, "the environment has chosen the allocator (MALLOC_TRIM_THRESHOLD_=1)"),
        (Allocation.UNKNOWN, "the C library is not glibc"),
    ],
)
def test_an_allocator_that_is_left_alone(measure, monkeypatch, allocation, reason) -> None:
    monkeypatch.setattr(allocation_cost, "find_process_allocator", lambda: "MALLOC_TRIM_THRESHOLD_=1")
    monkeypatch.setattr(allocation_cost, "read_allocation", lambda: allocation)
    assert measure() == Refusal("page faults", f"not counted: {reason}")


MODEL = """
import torch

class Chain(torch.nn.Module):
    def forward(self, x):
        # A buffer of 16 MiB in each call, which is freed again.
        return torch.sort(x * 2.0).values.sum()

def build():
    return Chain(), (torch.zeros(4, 2**20),)
"""


@pytest.mark.integration
@pytest.mark.skipif(read_allocation() is not Allocation.DEFAULT, reason="an allocator was chosen, or it is not glibc's")
def test_faults_of_a_real_program_end_with_pooled_memory(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODEL)
    found = measure_allocation_cost(
        TargetWorkload(str(tmp_path / "models.py:build")),
        lambda environment: start_arm(environment=environment),
        train=False,
        inner="eager",
        compare_times=True,
    )
    assert isinstance(found, AllocationCost)
    assert found.pooled is not None
    assert found.pooled.per_call < 200 <= found.default.per_call
