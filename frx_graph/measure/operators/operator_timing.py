"""Time operator calls by themselves, on made-up values in the real shapes and strides.

An operator that cannot run alone is reported as not measured; nothing is raised.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

import torch

from frx_graph.facts.layout import CHANNELS_LAST_ORDER, make_ordered_strides
from frx_graph.facts.operator_signature import OperatorSignature, TensorSpec, replace_strides
from frx_graph.measure.operators.operator_call import (
    FailureReport,
    Progress,
    isolate_calls,
    make_callable,
    report_failures,
)
from frx_graph.measure.operators.operator_inputs import OperandPool
from frx_graph.measure.operators.operator_measurement import LayoutTimes
from frx_graph.support.torch_internals import is_profiler_enabled

Clock = Callable[[], float]

BUDGET_S = 0.05
_LEAST_REPETITIONS = 3
_MOST_REPETITIONS = 200
_MOST_BUDGETS = 4
_DISTURBED = 2.0
_ROUNDS = 4
"""More, shorter rounds show how far times of the same call are apart on a machine that changes its speed."""


def time_layouts(
    signatures: Iterable[OperatorSignature],
    *,
    budget_s: float = BUDGET_S,
    resident: bool = False,
    on_failure: FailureReport = lambda _signature, _reason: None,
    progress: Progress = lambda _signature: None,
) -> Mapping[OperatorSignature, LayoutTimes]:
    """Time each anchor call in plain and in channels-last memory format, with all its 4-D and 5-D operands converted
    beforehand. Anchors without such operands, and those that could not be run, are missing from the result. See
    `time_variants` for the method; the budget is in seconds per anchor. With `resident`, operands stay in the caches.
    """
    variants = {
        signature: (_convert_order(signature, range), _convert_order(signature, CHANNELS_LAST_ORDER.__getitem__))
        for signature in dict.fromkeys(signatures)
        if any(len(tensor.shape) in (4, 5) for tensor in signature.tensors)
    }
    owner = {variant: signature for signature, both in variants.items() for variant in both}
    rounds = _run_rounds(
        list(variants.values()),
        budget_s=budget_s,
        resident=resident,
        on_failure=lambda variant, reason: on_failure(owner[variant], reason),
        progress=lambda variant: progress(owner[variant]),
    )
    return {
        signature: compare_rounds(rounds[plain], rounds[channels_last])
        for signature, (plain, channels_last) in variants.items()
        if plain in rounds and channels_last in rounds
    }


def compare_rounds(plain: Sequence[Sequence[float]], channels_last: Sequence[Sequence[float]]) -> LayoutTimes:
    """Return the times of one anchor, from the seconds of the runs in each round.

    They are `steady` if the rounds agree on the faster layout, by more than they differ.
    """
    ratios = [
        math.log(_take_median(ours) / _take_median(theirs)) for ours, theirs in zip(plain, channels_last, strict=True)
    ]
    steady = len(ratios) > 1 and abs(statistics.mean(ratios)) > max(ratios) - min(ratios)
    first, second = (_take_median(list(chain.from_iterable(runs))) for runs in (plain, channels_last))
    return LayoutTimes(first, second, steady)


def _take_median(runs: Sequence[float]) -> float:
    return statistics.median(select_undisturbed(runs))


def time_variants(
    groups: Iterable[Sequence[OperatorSignature]],
    *,
    budget_s: float = BUDGET_S,
    on_failure: FailureReport = lambda _signature, _reason: None,
    progress: Progress = lambda _signature: None,
) -> Mapping[OperatorSignature, float]:
    """Return the median seconds of each call. Calls of a group are compared and take turns; a group with a failing call
    is missing from the result, and the failure is reported for its first call.

    All groups have several rounds, so that a machine that changes its speed treats all alike; the median of the
    undisturbed runs counts. See `take_turns` for the budget, which is in seconds per group.
    """
    rounds = _run_rounds(groups, budget_s=budget_s, resident=False, on_failure=on_failure, progress=progress)
    return {signature: _take_median(list(chain.from_iterable(runs))) for signature, runs in rounds.items()}


def _run_rounds(
    groups: Iterable[Sequence[OperatorSignature]],
    *,
    budget_s: float,
    resident: bool,
    on_failure: FailureReport,
    progress: Progress,
) -> dict[OperatorSignature, list[list[float]]]:
    """Return the seconds of each call's runs, by round."""
    distinct = list(dict.fromkeys(map(tuple, groups)))
    if is_profiler_enabled():
        for group in distinct:
            on_failure(group[0], "a torch profiler is running, which slows down what is timed")
        return {}
    pool = OperandPool()
    samples: dict[OperatorSignature, list[list[float]]] = {}
    with isolate_calls([signature for group in distinct for signature in group]):
        for group in distinct * _ROUNDS:
            progress(group[0])
            with report_failures(group[0], on_failure):
                calls = [make_callable(signature, pool, resident=resident) for signature in group]
                turns = take_turns(calls, choose_clock(group[0]), budget_s=budget_s / _ROUNDS)
                for signature, runs in zip(group, turns, strict=True):
                    samples.setdefault(signature, []).append(runs)
    return samples


def _convert_order(signature: OperatorSignature, order: Callable[[int], Iterable[int]]) -> OperatorSignature:
    def choose_strides(tensor: TensorSpec) -> tuple[int, ...]:
        rank = len(tensor.shape)
        return make_ordered_strides(tensor.shape, tuple(order(rank))) if rank in (4, 5) else tensor.strides

    return replace_strides(signature, choose_strides)


def take_turns(
    calls: Sequence[Callable[[], object]], clock: Clock, *, budget_s: float, least_repetitions: int = _LEAST_REPETITIONS
) -> tuple[list[float], ...]:
    """Return the seconds of each call's runs, made in turn (A B A B). Every call is run once before, untimed.

    Goes on for `budget_s` seconds and until every call has `least_repetitions` undisturbed runs, but not beyond four
    times the budget.
    """
    for call in calls:
        call()
    samples: tuple[list[float], ...] = tuple([] for _ in calls)
    spent = 0.0
    for repetition in range(_MOST_REPETITIONS):
        enough = all(len(select_undisturbed(taken)) >= least_repetitions for taken in samples)
        if repetition >= least_repetitions and spent >= budget_s * (1 if enough else _MOST_BUDGETS):
            break
        for call, taken in zip(calls, samples, strict=True):
            begin = clock()
            call()
            taken.append(clock() - begin)
            spent += taken[-1]
    return samples


def select_undisturbed(seconds: Sequence[float]) -> list[float]:
    """Return the runs within twice the fastest. Other programs only ever slow a run down, by as much as a scheduler's
    time slice, so slower runs say little about the operator."""
    fastest = min(seconds, default=0.0)
    return [taken for taken in seconds if taken <= _DISTURBED * fastest]


def choose_clock(signature: OperatorSignature) -> Clock:
    """Return a clock that waits for the signature's device first."""
    devices = {tensor.device for tensor in signature.tensors} - {"cpu", "meta"}
    if not devices:
        return time.perf_counter
    module = torch.get_device_module(next(iter(devices)))

    def read_synchronized() -> float:
        module.synchronize()
        return time.perf_counter()

    return read_synchronized
