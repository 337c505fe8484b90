"""Candidates that are wrong in one way each: the gate that is for it rejects them.

In this process by default; by arms in processes of their own, as in real trials, in the integration tier.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from frx_graph.compiler.rewrite_log import RewriteLog
from frx_graph.support.process_state import preserve_process_state
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trial_worker.worker import TrialArm, handle_request
from frx_graph.trials.arm_messages import Load, TargetWorkload
from frx_graph.trials.arm_process import ArmProcess, Limits, make_arm_error
from frx_graph.trials.executor import run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Programs
from frx_graph.trials.trial_run import Gate, TrialRun
from frx_graph.trials.verdict import Outcome

pytestmark = pytest.mark.usefixtures("program_froze_nothing")

POLICY = TrialPolicy(process_pairs=2, quads_per_pair=3, steps_per_block=1, void_quads_allowed=0)
TIMED = TrialPolicy(process_pairs=2, quads_per_pair=7, steps_per_block=1, void_quads_allowed=14, process_bias=0)
"""A simulated clock runs alike in all processes, so that two pairs are enough to promote."""


PROGRAMS = Path(__file__).with_name("faulty_programs.py")
sys.path.append(str(PROGRAMS.parent))


class ArmHere:
    """Answer what an arm's process answers, in this process and without its limits."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.pid = os.getpid()
        self._arm = TrialArm(log=RewriteLog(), alone=False)

    def begin(self, message: Mapping[str, Any]) -> None:
        pass

    def ask(self, message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        with preserve_process_state():
            answer = dict(handle_request(self._arm, message))
        if "error" in answer:
            raise make_arm_error(answer)
        return answer

    def stop(self) -> None:
        pass


def start_here(_: Limits | None) -> ArmHere:
    torch._dynamo.reset()
    return ArmHere()


def start_process(_: Limits | None) -> ArmProcess:
    return start_arm(Limits(output_bytes=2**22))


def tried(
    fault: str,
    *,
    baseline: str = "none",
    train: bool = False,
    policy: TrialPolicy = POLICY,
    device: str | None = None,
    start: Callable[[Limits | None], Any] = start_process,
) -> TrialRun:
    """Try the program with the fault against the one without, by their names in `faulty_programs.py`."""

    def target(name: str) -> TargetWorkload:
        # A module is imported once: to register its operator again would leave torch with a handle to the first one.
        place = "faulty_programs" if start is start_here else PROGRAMS
        return TargetWorkload(f"{place}:{name}", device)

    base = Load(target(baseline), train, "eager", seed=0)
    programs = Programs(base, replace(base, workload=target(fault)))
    return run_trial(programs, policy, start, pause=lambda _: None)


def failed(run: TrialRun) -> Gate:
    assert run.verdict.outcome is Outcome.REJECT
    (gate,) = [gate for gate in run.gates if gate.passed is False]
    assert gate is run.gates[-1]
    assert gate.name.value in run.verdict.reason
    return gate.name


FAULTS = [
    ("values", Gate.NUMERICS),
    ("one_value", Gate.NUMERICS),
    ("nan", Gate.NUMERICS),
    ("strides", Gate.STRIDES),
    ("aliases", Gate.STRIDES),
    ("breaks", Gate.CAPTURE),
    ("recompiles", Gate.RECOMPILES),
    ("memory", Gate.MEMORY),
]


@pytest.mark.parametrize(("fault", "gate"), FAULTS)
def test_its_gate_rejects_a_fault(fault: str, gate: Gate) -> None:
    assert failed(tried(fault, start=start_here)) is gate


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fault", "gate"),
    [
        *(pytest.param(*fault, marks=pytest.mark.nightly) for fault in FAULTS[1:]),
        FAULTS[0],
        ("leaks", Gate.MEMORY),
        ("crashes", Gate.PROCESS),
        ("floods", Gate.PROCESS),
    ],
)
def test_its_gate_rejects_a_fault_in_a_process(fault: str, gate: Gate) -> None:
    assert failed(tried(fault)) is gate


@pytest.mark.parametrize("start", [start_here, pytest.param(start_process, marks=pytest.mark.integration)])
def test_gradients_that_are_off_by_a_hundredth(start: Callable[[Limits | None], Any]) -> None:
    assert failed(tried("gradients", train=True, start=start)) is Gate.NUMERICS


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_a_program_without_a_fault_passes_every_gate_here(train: bool) -> None:
    passes_all(tried("last_place", train=train, start=start_here))


@pytest.mark.integration
def test_one_that_hangs_is_given_up() -> None:
    assert failed(tried("hangs", policy=POLICY.model_copy(update={"patience_seconds": 15.0}))) is Gate.PROCESS


@pytest.mark.integration
@pytest.mark.parametrize(("fault", "outcome"), [("slower", Outcome.REJECT), ("faster", Outcome.PROMOTE)])
def test_one_that_is_five_percent_slower_is_rejected(fault: str, outcome: Outcome) -> None:
    """By the time that a simulated clock tells in both arms; the same faster is promoted."""
    run = tried(fault, baseline="timed", policy=TIMED)
    assert run.verdict.outcome is outcome
    assert run.gates[-1].name is Gate.THROUGHPUT
    assert run.gates[-1].passed is (outcome is Outcome.PROMOTE)
    assert all(gate.passed in (True, None) for gate in run.gates[:-1])
    assert run.verdict.statistics is not None
    expected = 1 / 1.05 if fault == "slower" else 1.05
    assert run.verdict.statistics.ratio_median == pytest.approx(expected, rel=0.01)


@pytest.mark.integration
@pytest.mark.parametrize(
    "program", ["counts", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("drifts", "draws"))]
)
def test_stateful_program_does_not_differ_from_itself(program: str) -> None:
    run = tried(program, baseline=program)
    assert [gate.name for gate in run.gates] == list(Gate)
    assert all(gate.passed in (True, None) for gate in run.gates[:-1]), run.gates


@pytest.mark.integration
@pytest.mark.parametrize("program", ["drifts", "draws"])
def test_that_float64_computes_something_else_excuses_nothing(program: str) -> None:
    run = tried(f"{program}_wrong", baseline=program)
    assert failed(run) is Gate.NUMERICS
    assert "more than rounding explains" in run.verdict.reason


@pytest.mark.integration
@pytest.mark.parametrize("program", ["runs_away", "runs_away_wrong"])
def test_unrepeatable_program_is_inconclusive(program: str) -> None:
    run = tried(program, baseline="runs_away")
    assert run.verdict.outcome is Outcome.INCONCLUSIVE
    assert "not repeatable" in run.verdict.reason
    assert [gate.passed for gate in run.gates] == [None]
    assert run.quads == ()
    assert run.environment is not None


@pytest.mark.integration
@pytest.mark.parametrize(
    ("program", "train"),
    [
        ("none", False),
        pytest.param("none", True, marks=pytest.mark.nightly),
        pytest.param("last_place", False, marks=pytest.mark.nightly),
        pytest.param("last_place", True, marks=pytest.mark.nightly),
    ],
)
def test_one_without_a_fault_passes_them_all(program: str, train: bool) -> None:
    passes_all(tried(program, train=train))


@pytest.mark.integration
@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_on_a_gpu_too(train: bool) -> None:
    passes_all(tried("last_place", train=train, device="cuda"))
    assert failed(tried("values", train=train, device="cuda")) is Gate.NUMERICS


def passes_all(run: TrialRun) -> None:
    assert [gate.name for gate in run.gates] == list(Gate)
    assert all(gate.passed in (True, None) for gate in run.gates[:-1]), run.gates
