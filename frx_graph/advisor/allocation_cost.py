"""Measure in fresh processes what a program's page faults cost.

The process that advises has run other things, so its heap is not that of the program.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from frx_graph.measure.page_faults import AllocationCost, PageFaults
from frx_graph.passes.detectors.page_fault_churn import FEWEST_FAULTS
from frx_graph.records import Refusal
from frx_graph.support.allocator import POOLING_VARIABLES, Allocation, find_process_allocator, read_allocation
from frx_graph.trials.arm_messages import (
    ArmClient,
    CountedFaults,
    CountFaults,
    Load,
    Loaded,
    Measure,
    Measured,
    TargetWorkload,
    Warm,
    Warmed,
    ask,
)
from frx_graph.trials.arm_process import ArmError

_SUBJECT = "page faults"
_SEED = 0
_WARM_STEPS = 10
"""The first calls make the heap grow, and raise glibc's dynamic thresholds."""
_ANSWER_SECONDS = 600.0
_MOST_PROCESSES = 3
"""About one process in three of a program with many faults has few: its heap holds something that keeps it from being
trimmed."""
_PAIRS = 3
"""Pairs of processes whose call times are compared: two that do the same may differ by 15 % as long as they live."""
_COMPARISONS = 4
"""Comparisons in each pair."""
_PROBED_STEPS = 3
_BLOCK_SECONDS = 0.3
_MOST_STEPS = 100


class FreshProcess(ArmClient, Protocol):
    """The process of an arm."""

    @property
    def pid(self) -> int:
        """Its number."""

    def stop(self) -> None:
        """End it."""


StartProcess = Callable[[Mapping[str, str]], FreshProcess]
"""Starts an arm with these environment variables added."""


def measure_allocation_cost(
    workload: TargetWorkload,
    start: StartProcess,
    *,
    train: bool,
    inner: str,
    compare_times: bool,
) -> AllocationCost | Refusal:
    """Count the page faults of a call in fresh processes, until one has many. With `compare_times`, also count them in
    a process that keeps what it frees, and compare the call times of pairs of such processes."""
    if (reason := _explain_no_measurement()) is not None:
        return Refusal(_SUBJECT, reason)
    load = Load(workload, train, inner, _SEED, random=False)
    cost: AllocationCost | None = None
    try:
        for number in range(1, _MOST_PROCESSES + 1):
            with ExitStack() as running:
                default = _start(start, {}, load, running)
                faults = _count(default)
                if faults is None:
                    return Refusal(_SUBJECT, "not counted: the system does not report them")
                cost = AllocationCost(faults, number)
                if faults.per_call < FEWEST_FAULTS:
                    continue
                if not compare_times:
                    return cost
                pooled = _start(start, POOLING_VARIABLES, load, running)
                cost = replace(cost, pooled=_count(pooled))
                saved: list[float] = []
                while True:
                    found, disturbance = _compare_times(default, pooled)
                    if disturbance:
                        return replace(cost, disturbance=disturbance)
                    saved.append(statistics.median(found))
                    if len(saved) == _PAIRS:
                        return replace(cost, saved_pct=tuple(saved))
                    running.close()
                    default = _start_with_faults(start, load, running)
                    pooled = _start(start, POOLING_VARIABLES, load, running)
    except ArmError as error:
        # What was counted before stands.
        return Refusal(_SUBJECT, f"not counted: {error}") if cost is None else replace(cost, disturbance=str(error))
    assert cost is not None, "at least one process was counted"
    return cost


def _explain_no_measurement() -> str | None:
    match read_allocation():
        case Allocation.CHOSEN:
            return f"not counted: the environment has chosen the allocator ({find_process_allocator()})"
        case Allocation.UNKNOWN:
            return "not counted: the C library is not glibc"
    return None


def _start(start: StartProcess, environment: Mapping[str, str], load: Load, running: ExitStack) -> FreshProcess:
    """Start a process, and warm the program up in it."""
    process = start(environment)
    running.callback(process.stop)
    ask(process, load, Loaded, _ANSWER_SECONDS)
    ask(process, Warm(_WARM_STEPS), Warmed, _ANSWER_SECONDS)
    return process


def _start_with_faults(start: StartProcess, load: Load, running: ExitStack) -> FreshProcess:
    """Start processes until one has many faults, as the one before; the last has what it has."""
    process = _start(start, {}, load, running)
    for _ in range(_MOST_PROCESSES - 1):
        faults = _count(process)
        if faults is not None and faults.per_call >= FEWEST_FAULTS:
            break
        running.close()
        process = _start(start, {}, load, running)
    return process


def _count(process: FreshProcess) -> PageFaults | None:
    return ask(process, CountFaults(), CountedFaults, _ANSWER_SECONDS).faults


def _compare_times(default: FreshProcess, pooled: FreshProcess) -> tuple[tuple[float, ...], str]:
    """Return the percentage that `pooled` saves in each comparison, and what disturbed them; then there are none."""
    ours = (default.pid, pooled.pid)

    def run_block(process: FreshProcess, steps: int) -> tuple[float, str]:
        block = ask(process, Measure(steps, ours), Measured, _ANSWER_SECONDS)
        found = block.disturbance
        return statistics.median(block.seconds), "" if found is None else f"{found.cause}: {found.detail}"

    probed, _ = run_block(default, _PROBED_STEPS)
    steps = min(_MOST_STEPS, max(_PROBED_STEPS, round(_BLOCK_SECONDS / probed)))
    saved = []
    for number in range(_COMPARISONS):
        # The order alternates, so that a drift favours neither.
        order = (default, pooled) if number % 2 == 0 else (pooled, default)
        seconds = {}
        for process in order:
            seconds[process.pid], disturbance = run_block(process, steps)
            if disturbance:
                return (), disturbance
        saved.append(100 * (1 - seconds[pooled.pid] / seconds[default.pid]))
    return tuple(saved), ""
