"""One operator call, ready to be run by itself, and a place to run it in that nobody else notices."""

from __future__ import annotations

import contextlib
import itertools
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from frx_graph.evidence.operator_inputs import build_arguments, own_overload
from frx_graph.facts.operator_signature import OperatorSignature

FailureReport = Callable[[OperatorSignature, str], None]
"""Called with a signature that could not be measured, and why."""
Progress = Callable[[OperatorSignature], None]
"""Called before a signature is run."""


_OUT_OF_CACHE_BYTES = 64 << 20
"""Operands that are twice as large together as the last cache of common processors are not in it when their turn comes.
"""
_MOST_SETS = 16
"""More sets of small operands would take longer to make than to time, and what is small is soon fetched."""
_JUST_COMPUTED = {"aten.addmm.default": 1}
"""Which operand an operator finds in the caches, where it is not the first."""


def callable_of(signature: OperatorSignature) -> Callable[[], Any]:
    """The call, on made-up arguments. Raises what `build_arguments` and `own_overload` raise."""
    overload = own_overload(signature.target)
    args, kwargs = build_arguments(signature)
    return lambda: overload(*args, **kwargs)


def callable_as_in_a_network(signature: OperatorSignature) -> Callable[[], Any]:
    """The same call on other operands each time, but for the one that was computed just before.

    In a network an operator finds neither its weights in the caches nor what was saved for the backward. Timed with all
    its operands there, plain and channels-last convolutions of deep stages come out in the wrong order.
    """
    overload = own_overload(signature.target)
    args, kwargs = build_arguments(signature)
    hot = _JUST_COMPUTED.get(signature.target, 0)
    fetched = sum(tensor.bytes for tensor in signature.tensors) - _bytes_of(args[hot : hot + 1])
    count = min(_MOST_SETS, math.ceil(_OUT_OF_CACHE_BYTES / fetched)) if fetched > 0 else 1
    sets = [(args, kwargs), *(build_arguments(signature) for _ in range(count - 1))]
    in_turn = itertools.cycle([([*own[:hot], *args[hot : hot + 1], *own[hot + 1 :]], named) for own, named in sets])

    def call() -> Any:
        positional, named = next(in_turn)
        return overload(*positional, **named)

    return call


def _bytes_of(arguments: Sequence[Any]) -> int:
    return sum(argument.nbytes for argument in arguments if isinstance(argument, Tensor))


@contextlib.contextmanager
def isolated(signatures: Iterable[OperatorSignature]) -> Iterator[None]:
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
def reported(signature: OperatorSignature, on_failure: FailureReport) -> Iterator[None]:
    """The boundary behind which any operator may fail in any way: what it raised is reported, and the rest goes on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        on_failure(signature, textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder="..."))
