"""Runs code on a model and puts everything back: weights, buffers, gradients, random number generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class _Saved:
    tensor: Tensor
    values: Tensor
    gradient: Tensor | None


@contextlib.contextmanager
def preserved_state(module: nn.Module | None) -> Iterator[None]:
    """On leaving, also by an exception: parameters and buffers hold the values and are the objects that they were,
    gradients are the ones from before, and torch's, numpy's and Python's generators continue where they stood.

    Inside, all gradients are None, as after `zero_grad()`. The values are kept in the host's memory.
    """
    owners = () if module is None else tuple(module.modules())
    parameters = [(owner, dict(owner._parameters)) for owner in owners]
    buffers = [(owner, dict(owner._buffers)) for owner in owners]
    held: list[Tensor | None] = [t for _, named in parameters for t in named.values()]
    held.extend(t for _, named in buffers for t in named.values())
    tensors = {id(t): t for t in held if t is not None}
    saved = [_Saved(t, t.detach().to("cpu", copy=True), t.grad if t.is_leaf else None) for t in tensors.values()]
    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    clear_gradients(module)
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
