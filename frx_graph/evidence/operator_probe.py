"""Runs single operator calls by themselves, on made-up values in the real shapes and strides, and reports what they do.

An operator that cannot be run alone is reported as not measured, and never raises: it may need values that made-up ones
are not, or more memory than there is.
"""

from __future__ import annotations

import contextlib
import statistics
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.utils._python_dispatch import _disable_current_modes

from frx_graph.errors import EvidenceError
from frx_graph.evidence.copy_recorder import CopyRecorder
from frx_graph.evidence.operator_inputs import build_arguments, converted_to, own_overload
from frx_graph.evidence.operator_measurement import LayoutTimes, OperatorMeasurement
from frx_graph.facts.operator_signature import OperatorSignature

Clock = Callable[[], float]
FailureReport = Callable[[OperatorSignature, str], None]
"""Called with a signature that could not be measured, and why."""
Progress = Callable[[OperatorSignature], None]
"""Called before a signature is run."""

PLAIN = MappingProxyType({4: torch.contiguous_format, 5: torch.contiguous_format})
CHANNELS_LAST = MappingProxyType({4: torch.channels_last, 5: torch.channels_last_3d})
_BUDGET_S = 0.05
_LEAST_REPETITIONS = 3
_MOST_REPETITIONS = 200
_MOST_BUDGETS = 4
_DISTURBED = 2.0


def measure_operators(
    signatures: Iterable[OperatorSignature],
    *,
    on_failure: FailureReport = lambda _signature, _reason: None,
    progress: Progress = lambda _signature: None,
) -> Mapping[OperatorSignature, OperatorMeasurement]:
    """The copies that each call makes inside and the implementation it takes; signatures that could not be run are
    missing from the result.

    Each distinct call is run once under the recorder, on a GPU after a first run.
    """
    distinct = list(dict.fromkeys(signatures))
    if not distinct:
        return {}
    ran: list[OperatorSignature] = []
    recorder = CopyRecorder()

    def record(signature: OperatorSignature) -> None:
        call = _call(signature)
        if any(tensor.device != "cpu" for tensor in signature.tensors):
            call()
        with recorder.region(signature):
            call()
        ran.append(signature)

    try:
        with _isolated(distinct), recorder:
            for signature in distinct:
                progress(signature)
                with _reported(signature, on_failure):
                    record(signature)
    except EvidenceError as error:
        for signature in distinct:
            on_failure(signature, str(error))
        return {}
    return {
        signature: OperatorMeasurement(
            copies=recorder.copies(signature),
            implementation=", ".join(recorder.implementations(signature)) or None,
        )
        for signature in ran
    }


def time_layouts(
    signatures: Iterable[OperatorSignature],
    *,
    budget_s: float = _BUDGET_S,
    on_failure: FailureReport = lambda _signature, _reason: None,
    progress: Progress = lambda _signature: None,
) -> Mapping[OperatorSignature, LayoutTimes]:
    """The time of each anchor call in plain and in channels-last memory format, all its 4-D and 5-D operands converted
    beforehand. Anchors without such operands, and those that could not be run, are missing from the result.

    The two layouts take turns, and all anchors have two rounds, so that a machine that slows down or speeds up
    meanwhile treats all alike; the median of the undisturbed runs counts. See `take_turns` for the budget, which is in
    seconds per anchor.
    """
    distinct = [s for s in dict.fromkeys(signatures) if any(len(t.shape) in PLAIN for t in s.tensors)]
    if _profiler_enabled():
        for signature in distinct:
            on_failure(signature, "a torch profiler is running, which slows down what is timed")
        return {}
    samples: dict[OperatorSignature, tuple[list[float], ...]] = {signature: ([], []) for signature in distinct}
    with _isolated(distinct):
        for signature in (*distinct, *distinct):
            progress(signature)
            with _reported(signature, on_failure):
                calls = (_call(signature, PLAIN), _call(signature, CHANNELS_LAST))
                turns = take_turns(calls, _clock(signature), budget_s=budget_s / 2)
                for all_runs, new_runs in zip(samples[signature], turns, strict=True):
                    all_runs.extend(new_runs)
    return {
        signature: LayoutTimes(
            plain_seconds=statistics.median(undisturbed_runs(plain)),
            channels_last_seconds=statistics.median(undisturbed_runs(channels_last)),
        )
        for signature, (plain, channels_last) in samples.items()
        if plain and channels_last
    }


def take_turns(
    calls: Sequence[Callable[[], object]], clock: Clock, *, budget_s: float, least_repetitions: int = _LEAST_REPETITIONS
) -> tuple[list[float], ...]:
    """Seconds of each call's runs, made in turn (A B A B). Every call is run once before, untimed.

    Goes on for `budget_s` seconds and until every call has `least_repetitions` undisturbed runs, but not beyond four
    times the budget.
    """
    for call in calls:
        call()
    samples: tuple[list[float], ...] = tuple([] for _ in calls)
    spent = 0.0
    for repetition in range(_MOST_REPETITIONS):
        enough = all(len(undisturbed_runs(taken)) >= least_repetitions for taken in samples)
        if repetition >= least_repetitions and spent >= budget_s * (1 if enough else _MOST_BUDGETS):
            break
        for call, taken in zip(calls, samples, strict=True):
            taken.append(_seconds(call, clock))
            spent += taken[-1]
    return samples


def undisturbed_runs(seconds: Sequence[float]) -> list[float]:
    """The runs within twice the fastest. What else goes on in a machine only ever slows a run down, by as much as a
    scheduler's time slice: slower ones say more about that than about the operator."""
    fastest = min(seconds, default=0.0)
    return [taken for taken in seconds if taken <= _DISTURBED * fastest]


def _call(signature: OperatorSignature, formats: Mapping[int, torch.memory_format] | None = None) -> Callable[[], Any]:
    overload = own_overload(signature.target)
    args, kwargs = build_arguments(signature)
    if formats is not None:
        args = converted_to(args, formats)
        kwargs = {name: converted_to(value, formats) for name, value in kwargs.items()}
    return lambda: overload(*args, **kwargs)


def _clock(signature: OperatorSignature) -> Clock:
    """A clock that waits for the signature's device first."""
    devices = {tensor.device for tensor in signature.tensors} - {"cpu", "meta"}
    if not devices:
        return time.perf_counter
    module = torch.get_device_module(next(iter(devices)))

    def synchronized() -> float:
        module.synchronize()
        return time.perf_counter()

    return synchronized


def _seconds(call: Callable[[], object], clock: Clock) -> float:
    begin = clock()
    call()
    return clock() - begin


@contextlib.contextmanager
def _isolated(signatures: Iterable[OperatorSignature]) -> Iterator[None]:
    """No autograd, no dispatch mode of a surrounding capture, the caller's random numbers left as they were, and no
    warnings about values that nobody chose."""
    on_gpu = any(tensor.device == "cuda" for signature in signatures for tensor in signature.tensors)
    devices = [torch.cuda.current_device()] if on_gpu and torch.cuda.is_available() else []
    with (
        _disable_current_modes(),
        torch.no_grad(),
        torch.random.fork_rng(devices),
        warnings.catch_warnings(action="ignore"),
    ):
        yield


@contextlib.contextmanager
def _reported(signature: OperatorSignature, on_failure: FailureReport) -> Iterator[None]:
    """The boundary behind which any operator may fail in any way: what it raised is reported, and the rest goes on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        on_failure(signature, textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder="..."))
