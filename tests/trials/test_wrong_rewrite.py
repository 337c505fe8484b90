"""A rewrite that is wrong, made by real arms from the names of its candidates, is rejected before it is timed."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from unproved_promotions import everything_made

from frx_graph.support.supervisor.process import extend_pythonpath
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import Load, TargetWorkload
from frx_graph.trials.arm_process import ArmProcess, Limits
from frx_graph.trials.executor import run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Programs
from frx_graph.trials.trial_run import Gate, TrialRun

POLICY = TrialPolicy(
    process_pairs=2,
    quads_per_pair=3,
    steps_per_block=1,
    void_quads_allowed=0,
    memory_headroom=2.0,  # of next to nothing: a conversion is as large as anything here
)
ARM = Path(__file__).with_name("wrong_rewrite_arm.py")
BEFORE = [Gate.PROCESS, Gate.PLAN, Gate.CAPTURE]


def tried(inner: str, fault: str | None, cache: Path) -> TrialRun:
    torch._dynamo.reset()
    model, (x,) = runpy.run_path(str(ARM))["build"]()

    def run(backend: Callable[..., Any]) -> None:
        with torch.no_grad():
            torch.compile(model, backend=backend)(x)

    _, made = everything_made(inner, run)
    candidates = tuple(candidate for candidate in made if candidate.rewrite == "propagate_layout")
    assert candidates
    torch._dynamo.reset()
    base = Load(TargetWorkload(f"{ARM}:build"), False, inner, seed=0)

    def start(limits: Limits | None) -> ArmProcess:
        if fault is None:
            return start_arm(limits)
        # What it compiles must be found by nobody else.
        environment = {**extend_pythonpath(), "TORCHINDUCTOR_CACHE_DIR": str(cache)}
        return ArmProcess([sys.executable, str(ARM), fault], limits=limits, environment=environment)

    return run_trial(Programs(base, replace(base, candidates=candidates)), POLICY, start, pause=lambda _: None)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("inner", "fault", "gate"),
    [
        ("eager", "value", Gate.NUMERICS),
        ("eager", "stride", Gate.STRIDES),
        # The program goes on without the rewrite.
        ("eager", "failure", Gate.PLAN),
        pytest.param("inductor", "value", Gate.NUMERICS, marks=pytest.mark.integration),
        pytest.param("inductor", "failure", Gate.PLAN, marks=pytest.mark.integration),
    ],
)
def test_the_gate_that_is_for_it_rejects(inner: str, fault: str, gate: Gate, tmp_path: Path) -> None:
    run = tried(inner, fault, tmp_path)
    assert [one.name for one in run.gates if one.passed is False] == [gate]
    assert [one.name for one in run.gates][:3] == BEFORE[: len(run.gates)]


@pytest.mark.integration
@pytest.mark.parametrize("inner", ["eager", pytest.param("inductor", marks=pytest.mark.integration)])
def test_as_it_is_it_passes_every_gate_before_it_is_timed(inner: str, tmp_path: Path) -> None:
    run = tried(inner, None, tmp_path)
    assert [gate.name for gate in run.gates] == list(Gate)
    assert all(gate.passed in (True, None) for gate in run.gates[:-1])
