"""Run single operator calls on made-up values in the real shapes and strides, isolated from the program.

An operator that cannot run alone is reported as not measured, and nothing is raised. It may need real values, or more
memory than is free.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from frx_graph.errors import EvidenceError
from frx_graph.facts.operator_signature import OperatorSignature
from frx_graph.measure.operators.copy_recorder import CopyRecorder
from frx_graph.measure.operators.operator_inputs import OperandPool, build_arguments, find_own_overload
from frx_graph.measure.operators.operator_measurement import OperatorMeasurement
from frx_graph.support.torch_internals import disable_autocast, disable_current_modes

FailureReport = Callable[[OperatorSignature, str], None]
"""Called with a signature that could not be measured, and why."""
Progress = Callable[[OperatorSignature], None]
"""Called before a signature is run."""

_MOST_SETS = 16
"""More sets of small operands would not matter, since small operands are soon fetched."""
_JUST_COMPUTED = {"aten.addmm.default": 1}
"""The operand that an operator finds in the caches, if it is not the first."""


def make_argument_sets(
    signature: OperatorSignature, pool: OperandPool, *, resident: bool = False
) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield the arguments of one run after the other, without end: other operands each time, except for the one that
    was computed just before. With `resident`, the same ones each time. Raises what `build_arguments` raises.

    In a large network neither the weights nor the tensors saved for the backward are in the caches. With all operands
    in the caches, plain and channels-last convolutions of deep stages are timed in the wrong order. In a network that
    fits into the caches it is the reverse.
    """
    hot = _JUST_COMPUTED.get(signature.target, 0)
    fetched = sum(tensor.bytes for tensor in signature.tensors)
    count = min(_MOST_SETS, math.ceil(pool.nbytes / fetched)) if fetched > 0 and not resident else 1
    (args, kwargs), *others = (build_arguments(signature, pool.take_tensor) for _ in range(count))
    sets = [(args, kwargs), *(([*own[:hot], *args[hot : hot + 1], *own[hot + 1 :]], named) for own, named in others)]
    return itertools.cycle(sets)


def make_callable(signature: OperatorSignature, pool: OperandPool, *, resident: bool = False) -> Callable[[], Any]:
    """Return the call on the operands of `make_argument_sets`."""
    overload = find_own_overload(signature.target)
    sets = make_argument_sets(signature, pool, resident=resident)

    def call() -> Any:
        args, kwargs = next(sets)
        return overload(*args, **kwargs)

    return call


@contextlib.contextmanager
def isolate_calls(signatures: Iterable[OperatorSignature]) -> Iterator[None]:
    """Run the block without autograd, autocast (which would run other operators), surrounding dispatch modes and
    warnings, and restore the random state afterwards."""
    on_gpu = any(tensor.device == "cuda" for signature in signatures for tensor in signature.tensors)
    devices = [torch.cuda.current_device()] if on_gpu and torch.cuda.is_available() else []
    with (
        disable_current_modes(),
        torch.no_grad(),
        disable_autocast(),
        torch.random.fork_rng(devices),
        warnings.catch_warnings(action="ignore"),
    ):
        yield


@contextlib.contextmanager
def report_failures(signature: OperatorSignature, on_failure: FailureReport) -> Iterator[None]:
    """Report an error in the block to `on_failure`, and continue."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        on_failure(signature, textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder="..."))


def measure_operators(
    signatures: Iterable[OperatorSignature],
    *,
    on_failure: FailureReport = lambda _signature, _reason: None,
    progress: Progress = lambda _signature: None,
) -> Mapping[OperatorSignature, OperatorMeasurement]:
    """Return the copies that each call makes inside and the implementation it takes; signatures that could not be run
    are missing.

    Each distinct call is run once under the recorder, on a GPU after a first run.
    """
    distinct = list(dict.fromkeys(signatures))
    if not distinct:
        return {}
    ran: list[OperatorSignature] = []
    recorder = CopyRecorder()

    def record(signature: OperatorSignature) -> None:
        # When this returns, the operands are freed, before the next are made.
        overload = find_own_overload(signature.target)
        args, kwargs = build_arguments(signature)
        if any(tensor.device != "cpu" for tensor in signature.tensors):
            overload(*args, **kwargs)
        with recorder.open_region(signature):
            overload(*args, **kwargs)
        ran.append(signature)

    try:
        with isolate_calls(distinct), recorder:
            for signature in distinct:
                progress(signature)
                with report_failures(signature, on_failure):
                    record(signature)
    except EvidenceError as error:
        for signature in distinct:
            on_failure(signature, str(error))
        return {}
    return {
        signature: OperatorMeasurement(
            copies=recorder.get_copies(signature),
            implementation=", ".join(recorder.get_implementations(signature)) or None,
        )
        for signature in ran
    }
