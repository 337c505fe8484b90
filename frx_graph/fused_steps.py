"""Fused optimizers on weights that were stored anew: gradients and averages are brought to the order of their weight.

Why: fused kernels go through the memory of a parameter, its gradient and its averages side by side, whatever their
strides (SGD and Adam on a CPU, torch 2.15). Gradients that a backward computes, and averages that an optimizer makes,
lie as their parameter does; those that a program assigns, or loads with a checkpoint, lie as it did before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from frx_graph.facts.layout import dimension_order
from frx_graph.facts.ordered_tensor import in_order

_IMAGE_WEIGHTS = (4, 5)
"""Dimensions of weights that are stored anew."""


@functools.cache
def keep_fused_steps_right() -> None:
    """See to it that all fused optimizers of the process find what they update side by side; the first call does."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_give_back)


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A gradient that `parameter` had, which may be a part of a tensor of all gradients, and what it has in a step."""

    parameter: Tensor
    own: Tensor
    laid_out: Tensor


_replaced: dict[int, list[_Replaced]] = {}
"""By the `id` of an optimizer in its step."""

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments | None:
    """The arguments of the step, with a closure that brings side by side what it has computed; None to leave them."""
    # A step that has raised has left its own.
    _replaced.pop(id(optimizer), None)
    if next(_fused_parameters(optimizer), None) is None:
        return None
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        _bring_side_by_side(optimizer)
        return None

    def computed() -> Any:
        loss = closure()
        _bring_side_by_side(optimizer)
        return loss

    if "closure" in kwargs:
        return args, {**kwargs, "closure": computed}
    return (args[0], computed, *args[2:]), kwargs


def _bring_side_by_side(optimizer: Optimizer) -> None:
    replaced = _replaced.setdefault(id(optimizer), [])
    for parameter in _fused_parameters(optimizer):
        if parameter.grad is not None and not _lie_alike(parameter.grad, parameter):
            own, parameter.grad = parameter.grad, _laid_out_as(parameter.grad, parameter)
            replaced.append(_Replaced(parameter, own, parameter.grad))
        state = optimizer.state.get(parameter, {})
        for name, value in _averages(state, parameter):
            state[name] = _laid_out_as(value, parameter)


def _give_back(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
    for gradient in _replaced.pop(id(optimizer), ()):
        if gradient.parameter.grad is gradient.laid_out:
            # Fused steps divide gradients by a scale, in place.
            gradient.own.copy_(gradient.laid_out)
            gradient.parameter.grad = gradient.own


def _fused_parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        if group.get("fused"):
            yield from (parameter for parameter in group["params"] if parameter.dim() in _IMAGE_WEIGHTS)


def _averages(state: Mapping[str, Any], parameter: Tensor) -> list[tuple[str, Tensor]]:
    """Those that lie otherwise."""
    return [
        (name, value)
        for name, value in state.items()
        if isinstance(value, Tensor) and value.shape == parameter.shape and not _lie_alike(value, parameter)
    ]


def _lie_alike(one: Tensor, other: Tensor) -> bool:
    """True where both have an element at the same place, strides of dimensions of size 1 aside."""
    own, strides = one.stride(), other.stride()
    if own == strides:
        return True
    return all(size == 1 or mine == its for size, mine, its in zip(one.shape, own, strides, strict=True))


def _laid_out_as(value: Tensor, parameter: Tensor) -> Tensor:
    with torch.no_grad():
        return in_order(value, dimension_order(tuple(parameter.shape), parameter.stride()))
