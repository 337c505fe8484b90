"""Compiles, checks, times and examines all arms of one case."""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch._inductor import config as inductor_config
from versus_arms import Arm, Kind, Program
from versus_case import DTYPES, TOLERANCES, Case, Expected, Network, build, outcome, step_of
from versus_evidence import ScheduleReader, peak_memory
from versus_results import ArmResult, CaseResult
from versus_timing import Clock, Samples, Step, interleave, no_recompilation, ratio

from frx_graph import clear
from frx_graph.support.allocator import Allocation, pool_allocations

_RECOMPILE_LIMIT = 64
"""Enough for all arms where they cannot be isolated from one another."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure. `rounds` is the number of samples of each arm, `block_seconds` how long one should take;
    `patience_s` seconds a case are spent on repeating rounds that other programs disturbed."""

    device: torch.device
    rounds: int
    block_seconds: float
    patience_s: float
    clock: Clock
    progress: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Compiled:
    """An arm that has run and whose step is right."""

    arm: Arm
    step: Step
    compile_s: float | None
    reader: ScheduleReader


def measure(case: Case, arms: Sequence[Arm], settings: Settings) -> CaseResult:
    """All of `arms`, the reference first. An arm that fails or is wrong gets an error instead of figures; without a
    reference, or a network to check against, nothing is timed."""
    if case.allocation is Allocation.POOLED:
        pool_allocations()
    _start_compiler()
    torch._dynamo.reset()
    clear()
    settings.progress(f"{case.title}: building")
    with torch._dynamo.config.patch(recompile_limit=_RECOMPILE_LIMIT):
        compiled, errors = _compile_all(case, arms, settings)
        settings.progress(f"{case.title}: timing {len(compiled)} arms")
        samples = _timed(compiled, settings) if compiled else Samples({}, block=0, disturbed=0)
        results = {made.arm.name: _result(made, compiled[0].arm, samples, settings) for made in compiled}
    torch._dynamo.reset()
    return CaseResult(
        entry=case.entry.name,
        group=case.entry.group,
        mode=case.mode,
        batch=case.batch,
        dtype=case.dtype,
        inner=case.inner,
        block=samples.block,
        disturbed=samples.disturbed,
        allocation=case.allocation,
        arms=tuple(
            results[arm.name] if arm.name in results else ArmResult(arm.name, arm.kind, error=errors[arm.name])
            for arm in arms
            if arm.name in results or arm.name in errors
        ),
    )


@functools.cache
def _start_compiler() -> None:
    """Compile something once, or the first arm's compile time would hold Inductor's own import and start."""
    torch.compile(torch.relu)(torch.ones(2))


def _compile_all(case: Case, arms: Sequence[Arm], settings: Settings) -> tuple[list[_Compiled], dict[str, str]]:
    """The arms that run and are right, and by name what is wrong with others; nothing follows a broken reference."""
    compiled: list[_Compiled] = []
    errors: dict[str, str] = {}
    try:
        network = build(case, settings.device)
        expected = Expected.of(network, case.train)
    except Exception as error:  # noqa: BLE001 - a network that cannot run is a result, and other cases go on
        return compiled, {arms[0].name: in_one_line(error)}
    for arm in arms:
        if case.train and arm.frozen:
            continue
        settings.progress(f"{case.title}: compiling {arm.name}")
        made = _compile(case, arm, network, expected)
        if not isinstance(made, str):
            compiled.append(made)
            continue
        errors[arm.name] = made
        settings.progress(f"{case.title}: {arm.name} is broken: {made}")
        if arm.kind is Kind.REFERENCE:
            break
    return compiled, errors


def _compile(case: Case, arm: Arm, network: Network, expected: Expected) -> _Compiled | str:
    """The arm, compiled and checked on its own copy of the network; or what is wrong with it."""
    model, calls = copy.deepcopy(network)
    reader = ScheduleReader()
    try:
        program, calls = arm.prepare(model, calls)
        step = step_of(program, model, calls, case.train)
        with reader.compiling(), inductor_config.patch(dict(arm.config)):
            started = time.perf_counter()
            step()
            compile_s = time.perf_counter() - started
            made = outcome(program, (model, calls), case.train)
            step()
    except Exception as error:  # noqa: BLE001 - an arm that cannot run is a result, and the others go on
        return in_one_line(error)
    wrong = expected.difference(made, TOLERANCES[DTYPES[case.dtype]])
    if wrong is not None:
        return f"wrong {wrong}"
    return _Compiled(arm, step, compile_s if is_compiled(program, model) else None, reader)


def in_one_line(error: Exception) -> str:
    """Its class and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def is_compiled(program: Program, model: nn.Module) -> bool:
    """False for plain eager, which runs the model itself and has no compile time."""
    return program is not model


def _timed(compiled: Sequence[_Compiled], settings: Settings) -> Samples:
    with no_recompilation():
        steps = {made.arm.name: made.step for made in compiled}
        return interleave(steps, settings.rounds, settings.block_seconds, settings.clock, settings.patience_s)


def _result(made: _Compiled, reference: Arm, samples: Samples, settings: Settings) -> ArmResult:
    seconds = samples.seconds[made.arm.name]
    conversions = made.reader.conversions(made.step)
    return ArmResult(
        arm=made.arm.name,
        kind=made.arm.kind,
        frozen=made.arm.frozen,
        seconds=seconds,
        ratio=ratio(samples.seconds[reference.name], seconds),
        median_s=statistics.median(seconds),
        compile_s=made.compile_s,
        peak_bytes=peak_memory(made.step, settings.device),
        conversions=None if conversions is None else conversions.count,
        conversion_bytes=None if conversions is None else conversions.bytes,
    )
