"""Runs code on a model and puts everything back: weights, buffers, gradients, inputs, random number generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


@dataclass(frozen=True, slots=True)
class _Saved:
    tensor: Tensor
    values: Tensor
    gradient: Tensor | None


@contextlib.contextmanager
def preserved_state(module: nn.Module | None, arguments: object = ()) -> Iterator[None]:
    """On leaving, also by an exception: parameters, buffers and the tensors among `arguments` hold the values and are
    the objects that they were, gradients are the ones from before, and torch's, numpy's and Python's generators
    continue where they stood.

    Inside, all gradients are None, as after `zero_grad()`, and buffers are copies: writing to a buffer that a graph of
    the caller's has saved would break its backward. The values of parameters are kept in the host's memory.
    """
    owners = [m for m in module.modules() if not isinstance(m, torch.jit.ScriptModule)] if module is not None else []
    parameters = [(owner, dict(owner._parameters)) for owner in owners]
    buffers = [(owner, dict(owner._buffers)) for owner in owners]
    held: list[Tensor] = [t for _, named in parameters for t in named.values() if t is not None]
    held.extend(t for t in pytree.tree_leaves(arguments) if isinstance(t, Tensor))
    saved = [
        _Saved(t, t.detach().to("cpu", copy=True), t.grad if t.is_leaf else None)
        for t in {id(t): t for t in held}.values()
        if t.layout is torch.strided and not t.is_meta
    ]
    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    for entry in saved:
        if entry.gradient is not None:
            entry.tensor.grad = None
    _replace_buffers(buffers)
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)
        for owner, held_parameters in parameters:
            owner._parameters.update(held_parameters)
        for owner, held_buffers in buffers:
            owner._buffers.update(held_buffers)
        for entry in saved:
            _restore(entry)


def _replace_buffers(buffers: Sequence[tuple[nn.Module, Mapping[str, Tensor | None]]]) -> None:
    """Put copies in the places of all buffers; one buffer under two names stays one."""
    copies: dict[int, Tensor] = {}
    for owner, named in buffers:
        for name, buffer in named.items():
            if buffer is not None:
                owner._buffers[name] = copies.setdefault(id(buffer), buffer.detach().clone())


def clear_gradients(module: nn.Module | None) -> None:
    """Set every parameter's gradient to None."""
    for parameter in () if module is None else module.parameters():
        parameter.grad = None


def _restore(entry: _Saved) -> None:
    with torch.no_grad():
        current = entry.tensor.detach().to("cpu")
        # Writing would raise the version counter, and break a graph of the caller's that still waits for its backward.
        if not torch.equal(current, entry.values):
            entry.tensor.copy_(entry.values)
    if entry.tensor.is_leaf:
        entry.tensor.grad = entry.gradient
