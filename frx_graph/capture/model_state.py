"""Runs code on a model and puts everything back: weights, buffers, gradients, inputs, modes, random generators, and
what Python itself keeps."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from frx_graph.capture.python_state import PythonState
from frx_graph.capture.reachable_state import MADE_LATER, reachable


@dataclass(frozen=True, slots=True)
class _Saved:
    """`values` lie in the host's memory; None for a tensor that has none to keep: sparse, nested, on meta, its memory
    freed. `nbytes` is how much memory there is. `learns` is None for what is no leaf of autograd's, else whether it
    requires a gradient."""

    tensor: Tensor
    values: Tensor | None
    nbytes: int
    gradient: Tensor | None
    learns: bool | None


class HeldState:
    """What `preserved_state` holds while the program runs."""

    def __init__(self, saved: Sequence[_Saved], parameters: Sequence[nn.Parameter]) -> None:
        self._saved = saved
        self.parameters = tuple(parameters)

    def clear_gradients(self) -> None:
        """Set the gradients of all parameters and other leaves to None, as after `zero_grad()`."""
        for entry in self._saved:
            if entry.tensor.is_leaf and entry.tensor.grad is not None:
                entry.tensor.grad = None


@contextlib.contextmanager
def preserved_state(*program: object) -> Iterator[HeldState]:
    """On leaving, also by an exception: all that `program` reaches is as it was.

    `program` is the callables that run and what they are given; `reachable` says what they reach. Parameters, buffers
    and tensors hold the values and are the objects that they were, gradients are the ones from before, leaves of
    autograd's are leaves again, unless they are views, modules are in training or evaluation mode as before, torch's,
    numpy's and Python's generators continue where they stood, and containers, arrays, attributes and variables hold
    what they held. Not so what an object of a library in C keeps, as an iterator and a file do, what is more than some
    objects deep, the state of torch's optimizers and schedulers, hooks and attributes that a tensor did not have, and
    what no object holds that is followed: attributes of classes, and what libraries keep for themselves.

    Inside, all gradients are None, and buffers are copies: writing to a buffer that a graph of the caller's has saved
    would break its backward.
    """
    reached = reachable(*program)
    owners = [m for m in reached.modules if not isinstance(m, torch.jit.ScriptModule)]
    parameters = [(owner, dict(owner._parameters)) for owner in owners]
    buffers = [(owner, dict(owner._buffers)) for owner in owners]
    modes = [(module, module.training) for module in reached.modules]
    held = [t for _, named in parameters for t in named.values() if t is not None]
    saved = _saved([*held, *reached.tensors])
    python = PythonState(reached)
    python_generator, numpy_generator = random.getstate(), numpy.random.get_state()
    state = HeldState(saved, held)
    state.clear_gradients()
    _replace_buffers(buffers)
    try:
        with torch.random.fork_rng():
            yield state
    finally:
        # What cannot be put back keeps nothing else from being put back.
        with contextlib.ExitStack() as last:
            for entry in saved:
                last.callback(_restore, entry)
            last.callback(python.put_back)
            random.setstate(python_generator)
            numpy.random.set_state(numpy_generator)
            for owner, held_parameters in parameters:
                _put_names_back(owner, owner._parameters, held_parameters)
            for owner, held_buffers in buffers:
                _put_names_back(owner, owner._buffers, held_buffers)
            for module, training in modes:
                module.training = training


def _saved(tensors: Iterable[Tensor]) -> list[_Saved]:
    return [
        _Saved(
            tensor=t,
            values=t.detach().to("cpu", copy=True) if _is_strided(t) and _has_memory(t) else None,
            nbytes=t.untyped_storage().nbytes() if _is_strided(t) else 0,
            gradient=t.grad if t.is_leaf else None,
            learns=t.requires_grad if t.is_leaf else None,
        )
        for t in {id(t): t for t in tensors if not is_lazy(t)}.values()
    ]


def _is_strided(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta


def _has_memory(tensor: Tensor) -> bool:
    """False for tensors whose memory has been freed behind them, as sharding and offloading do between calls: reading
    them ends the process. Subclasses with operators of their own may have their memory elsewhere."""
    if not _is_strided(tensor) or type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return True
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size() if tensor.numel() else 0
    return tensor.untyped_storage().nbytes() >= needed


def _put_names_back(owner: nn.Module, named: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Also what was registered since goes, but where torch makes it in the first call."""
    if not isinstance(owner, MADE_LATER):
        for name in named.keys() - before.keys():
            del named[name]
    named.update(before)


def _replace_buffers(buffers: Sequence[tuple[nn.Module, Mapping[str, Tensor | None]]]) -> None:
    """Put copies in the places of all buffers; one buffer under two names stays one."""
    copies: dict[int, Tensor] = {}
    for owner, named in buffers:
        for name, buffer in named.items():
            if buffer is not None and not is_lazy(buffer) and _has_memory(buffer):
                owner._buffers[name] = copies.setdefault(id(buffer), buffer.detach().clone())


def _restore(entry: _Saved) -> None:
    if entry.learns is not None and entry.tensor.requires_grad != entry.learns and not entry.tensor._is_view():
        # Something that learns was written into it. Views cannot be taken out of a graph.
        entry.tensor.detach_().requires_grad_(entry.learns)
    if entry.tensor.is_leaf:
        entry.tensor.grad = entry.gradient
    if entry.values is not None:
        if not _has_memory(entry.tensor):
            entry.tensor.untyped_storage().resize_(entry.nbytes)
        with torch.no_grad():
            current = entry.tensor.detach().to("cpu")
            # Writing would raise the version counter, and break a graph of the caller's that waits for its backward.
            if not _same_bytes(current, entry.values):
                entry.tensor.copy_(entry.values)


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    """Also of types that have no comparison, and of what is not a number."""
    if one.shape != other.shape or one.is_quantized:
        return one.shape == other.shape and torch.equal(one, other)
    # Only of what is contiguous does `reshape` make memory that can be read as bytes: one column of a matrix has gaps.
    flat = (value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for value in (one, other))
    return torch.equal(*flat)
