"""Keeps upsampling one operator while AOTAutograd traces a graph that is to run in eager."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch._C import DispatchKey
from torch._ops import OpOverload

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


@contextlib.contextmanager
def whole_upsampling() -> Iterator[None]:
    """While it is entered, tracing sees the upsampling operators that eager runs.

    Torch has Python kernels that take them apart into indexing and arithmetic (`torch/_decomp/decompositions.py`),
    which a compiler makes one loop of; run as they are they take several times as long as the operator.
    """
    taken = [
        (operator, key, operator.py_kernels.pop(key))
        for operator in _upsamplings()
        for key in _KEYS
        if key in operator.py_kernels
    ]
    _forget_dispatch()
    try:
        yield
    finally:
        for operator, key, kernel in taken:
            operator.py_kernels[key] = kernel
        _forget_dispatch()


def _forget_dispatch() -> None:
    for operator in _upsamplings():
        operator._dispatch_cache.clear()


def _upsamplings() -> Iterator[OpOverload]:
    for name in dir(torch.ops.aten):
        if name.startswith(("upsample_", "_upsample_")) and not name.endswith("_backward"):
            packet = getattr(torch.ops.aten, name)
            yield from (getattr(packet, overload) for overload in packet.overloads())
