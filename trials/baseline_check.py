"""Compare a compiled program with eager. A trial does this first; without a candidate, it does nothing else."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from frx_graph.trials.arm_messages import Compile, Compiled, Examine, Examined, Judge, Judged, Load, Loaded
from frx_graph.trials.arm_process import ArmError
from frx_graph.trials.numerics import Difference, describe_differences
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.schedule import Arm
from frx_graph.trials.trial_run import EagerComparison
from frx_graph.trials.worker_client import BaselineError, BudgetEnded, RunningArms, StartArm, WorkerClient

DRAWS = 3
"""Draws of inputs on which results are compared."""


def describe_departure(departed: Sequence[Difference], inner: str) -> str:
    """Return how the compiled program differs from eager; empty if it does not."""
    if not departed:
        return ""
    found = "; ".join(describe_differences(tuple(departed), 1))
    return f"{'Inductor' if inner == 'inductor' else inner} alone computes something else than eager ({found})"


def compare_with_eager(program: Load, policy: TrialPolicy, start: StartArm) -> EagerComparison:
    """Compare `program`, compiled without a candidate, with eager. Takes at most the policy's time budget. Raises
    `TrialError` if it does not run."""
    client = WorkerClient(policy, time.monotonic() + policy.time_budget_seconds, time.monotonic)
    while True:
        try:
            return _compare_once(program, policy, start, client)
        except BaselineError as failure:
            client.forgive_once(failure)
        except BudgetEnded:
            return EagerComparison(unknown="the time budget ended, raise time_budget_seconds in the policy")


def _compare_once(program: Load, policy: TrialPolicy, start: StartArm, client: WorkerClient) -> EagerComparison:
    with tempfile.TemporaryDirectory(prefix="frx-trial-") as folder, RunningArms(start) as running:
        try:
            arms = {Arm.BASELINE: running.start()}
        except ArmError as error:
            raise client.make_failure(Arm.BASELINE, error) from error
        if not client.ask(arms, Arm.BASELINE, program, Loaded).repeats:
            return EagerComparison(unknown="the program does not compute the same twice")
        client.ask(arms, Arm.BASELINE, Compile(), Compiled)
        file = str(Path(folder) / "baseline.pt")
        client.ask(arms, Arm.BASELINE, Examine(file, DRAWS), Examined)
        judge = Judge(file, file, DRAWS, policy.numerics_multiplier, policy.numerics_multiplier_half)
        try:
            judged = client.ask(arms, Arm.BASELINE, judge, Judged)
        except BaselineError as error:
            return EagerComparison(unknown=error.message)
    unknown = "" if judged.eager else "the program does not run without a compiler"
    return EagerComparison(describe_departure(judged.departed, program.inner), unknown)
