"""Candidates that are wrong in one way each, in real processes: the gate that is for it says so."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from frx_graph.arms import where_this_is
from frx_graph.records import Candidate
from frx_graph.trials.arm_messages import Load, TargetWorkload
from frx_graph.trials.arm_process import ArmProcess, Limits
from frx_graph.trials.executor import Programs, TrialRun, run_trial
from frx_graph.trials.gates import Gate
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.verdict import Outcome

POLICY = TrialPolicy(process_pairs=2, quads_per_pair=3, steps_per_block=1, void_quads_allowed=0)
CANDIDATE = Candidate("planted", "0" * 16, ("linear",))


def tried(fault: str, *, train: bool = False, policy: TrialPolicy = POLICY) -> TrialRun:
    script = str(Path(__file__).with_name("faulty_arm.py"))

    def start() -> ArmProcess:
        return ArmProcess(
            [sys.executable, script, fault], limits=Limits(output_bytes=2**22), environment=where_this_is()
        )

    base = Load(TargetWorkload("planted:model"), train, "eager", seed=0)
    programs = Programs(base, replace(base, candidates=(CANDIDATE,)))
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
        ("one value", Gate.NUMERICS),
        ("NaN", Gate.NUMERICS),
        ("strides", Gate.STRIDES),
        ("aliases", Gate.STRIDES),
        ("break", Gate.CAPTURE),
        ("recompiles", Gate.RECOMPILES),
        ("memory", Gate.MEMORY),
        ("leak", Gate.MEMORY),
        ("crash", Gate.PROCESS),
        ("output", Gate.PROCESS),
    ],
)
def test_the_gate_that_is_for_it_rejects(fault: str, gate: Gate) -> None:
    assert failed(tried(fault)) is gate


def test_one_that_hangs_is_given_up() -> None:
    assert failed(tried("hang", policy=POLICY.model_copy(update={"patience_seconds": 15.0}))) is Gate.PROCESS


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_one_without_a_fault_passes_them_all(train: bool) -> None:
    run = tried("none", train=train)
    assert [gate.name for gate in run.gates] == list(Gate)
    assert all(gate.passed in (True, None) for gate in run.gates[:-1])
