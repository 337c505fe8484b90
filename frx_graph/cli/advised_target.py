"""Advise on a target of the command line."""

from __future__ import annotations

import contextlib
import functools
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from frx_graph.advice import Advice
from frx_graph.advisor.target import load_target, place
from frx_graph.cli.interrupt import exit_on_interrupt
from frx_graph.cli.printing.output import show_stages
from frx_graph.errors import TargetError
from frx_graph.measure.console_capture import STDERR, STDOUT, redirect_output
from frx_graph.support.allocator import pool_allocations


@dataclass(frozen=True, slots=True)
class AdviseSettings:
    """Settings of the advice, from the command line and `[tool.frx]`."""

    train: bool
    observe: bool
    measure: bool
    inner: str
    dtype: torch.dtype | None
    dtype_name: str | None
    device: str | None
    gpu: str | None = None
    """Name of a GPU that the advice is for, which need not be here."""
    evidence: tuple[Path, ...] = ()


def advise_target(target: str, settings: AdviseSettings) -> Advice:
    """Load a target, and return the advice on it. Raises `FrxError`."""
    # What the model prints, its native code and its child processes too, must not end up in the report.
    with show_stages() as progress, redirect_output(STDOUT, STDERR), contextlib.redirect_stdout(sys.stderr):
        progress("importing torch's compiler")
        with exit_on_interrupt():
            from frx_graph.advisor.absent_gpu import load_on_absent_gpu
            from frx_graph.advisor.advisor import advise as advise_model
            from frx_graph.advisor.allocation_cost import measure_allocation_cost
            from frx_graph.trial_worker.launch import start_arm
            from frx_graph.trials.arm_messages import TargetWorkload

        if settings.measure and settings.gpu is None:
            # Operators are timed without page faults, as trials time programs. The advice is for the user's allocation.
            pool_allocations(by_plan=True)
        progress(f"loading {target}")
        if settings.gpu is None:
            workload = place(load_target(target), settings.device, settings.dtype)
        else:
            workload = load_on_absent_gpu(target, settings.dtype)
        cost_allocations = functools.partial(
            measure_allocation_cost,
            TargetWorkload(target, settings.device, settings.dtype_name),
            lambda environment: start_arm(environment=environment),
            train=settings.train,
            inner=settings.inner,
            compare_times=settings.measure,
        )
        try:
            report = advise_model(
                workload.model,
                workload.args,
                workload.kwargs,
                train=settings.train,
                observe=settings.observe,
                inner=settings.inner,
                measure=settings.measure,
                target=target,
                evidence=settings.evidence,
                progress=progress,
                builder=workload.builder,
                device=settings.gpu,
                # Eager frees and allocates around every operator: only what Inductor compiles is worth the wait.
                cost_allocations=cost_allocations if settings.observe and settings.inner == "inductor" else None,
            )
        except SystemExit as error:
            message = f"the model ended the program with exit code {error.code!r}"
            raise TargetError(message, "guard its sys.exit") from error
    return report.advice
