"""Candidates that are wrong in one way each, tried by real arms: the gate that is for it says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import Load, TargetWorkload
from frx_graph.trials.arm_process import ArmProcess, Limits
from frx_graph.trials.executor import Programs, TrialRun, run_trial
from frx_graph.trials.gates import Gate
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.verdict import Outcome

pytestmark = pytest.mark.slow

POLICY = TrialPolicy(process_pairs=2, quads_per_pair=3, steps_per_block=1, void_quads_allowed=0)
TIMED = TrialPolicy(process_pairs=2, quads_per_pair=7, steps_per_block=1, void_quads_allowed=14, process_bias=0)
"""A simulated clock runs alike in all processes, so that two pairs are enough to promote."""


def tried(
    fault: str,
    *,
    baseline: str = "none",
    train: bool = False,
    policy: TrialPolicy = POLICY,
    device: str | None = None,
) -> TrialRun:
    """The program with the fault against the one without, by their names in `faulty_programs.py`."""

    def start(_: Limits | None) -> ArmProcess:
        return start_arm(Limits(output_bytes=2**22))

    def target(name: str) -> TargetWorkload:
        return TargetWorkload(f"{Path(__file__).with_name('faulty_programs.py')}:{name}", device)

    base = Load(target(baseline), train, "eager", seed=0)
    programs = Programs(base, replace(base, workload=target(fault)))
    return run_trial(programs, policy, start, pause=lambda _: None)


def failed(run: TrialRun) -> Gate:
    assert run.verdict.outcome is Outcome.REJECT
    (gate,) = [gate for gate in run.gates if gate.passed is False]
    assert gate is run.gates[-1]
    assert gate.name.value in run.verdict.reason
    return gate.name


@pytest.mark.parametrize(
    ("fault", "gate"),
    [
        ("values", Gate.NUMERICS),
        ("one_value", Gate.NUMERICS),
        ("nan", Gate.NUMERICS),
        ("strides", Gate.STRIDES),
        ("aliases", Gate.STRIDES),
        ("breaks", Gate.CAPTURE),
        ("recompiles", Gate.RECOMPILES),
        ("memory", Gate.MEMORY),
        ("leaks", Gate.MEMORY),
        ("crashes", Gate.PROCESS),
        ("floods", Gate.PROCESS),
    ],
)
def test_the_gate_that_is_for_it_rejects(fault: str, gate: Gate) -> None:
    assert failed(tried(fault)) is gate


def test_gradients_that_are_off_by_a_hundredth() -> None:
    assert failed(tried("gradients", train=True)) is Gate.NUMERICS


def test_one_that_hangs_is_given_up() -> None:
    assert failed(tried("hangs", policy=POLICY.model_copy(update={"patience_seconds": 15.0}))) is Gate.PROCESS


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


@pytest.mark.parametrize("program", ["counts", "drifts", "draws"])
def test_a_program_with_a_state_of_its_own_is_no_other_than_itself(program: str) -> None:
    run = tried(program, baseline=program)
    assert [gate.name for gate in run.gates] == list(Gate)
    assert all(gate.passed in (True, None) for gate in run.gates[:-1]), run.gates


@pytest.mark.parametrize("program", ["drifts", "draws"])
def test_that_float64_computes_something_else_excuses_nothing(program: str) -> None:
    run = tried(f"{program}_wrong", baseline=program)
    assert failed(run) is Gate.NUMERICS
    assert "more than rounding explains" in run.verdict.reason


@pytest.mark.parametrize("program", ["runs_away", "runs_away_wrong"])
def test_of_a_program_that_is_not_repeatable_nothing_is_known(program: str) -> None:
    run = tried(program, baseline="runs_away")
    assert run.verdict.outcome is Outcome.INCONCLUSIVE
    assert "not repeatable" in run.verdict.reason
    assert [gate.passed for gate in run.gates] == [None]
    assert run.quads == ()
    assert run.environment is not None


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", ["none", "last_place"])
def test_one_without_a_fault_passes_them_all(program: str, train: bool) -> None:
    passes_all(tried(program, train=train))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_on_a_gpu_too(train: bool) -> None:
    passes_all(tried("last_place", train=train, device="cuda"))
    assert failed(tried("values", train=train, device="cuda")) is Gate.NUMERICS


def passes_all(run: TrialRun) -> None:
    assert [gate.name for gate in run.gates] == list(Gate)
    assert all(gate.passed in (True, None) for gate in run.gates[:-1]), run.gates
