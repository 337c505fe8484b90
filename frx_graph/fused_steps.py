"""Fused optimizers on weights that were stored anew: gradients and averages are brought to the order of their weight.

Why: fused kernels go through the memory of a parameter, its gradient and its averages side by side, whatever their
strides (SGD and Adam on a CPU, torch 2.15). Gradients that a backward computes, and averages that an optimizer makes,
lie as their parameter does; those that a program assigns, or loads with a checkpoint, lie as it did before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

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
    register_optimizer_step_pre_hook(_bring_side_by_side)
    register_optimizer_step_post_hook(_give_back)


_replaced: dict[int, list[tuple[Tensor, Tensor]]] = {}
"""By the `id` of an optimizer in its step: parameters with the gradients that they had, which may be parts of a tensor
of all gradients."""


def _bring_side_by_side(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
    replaced = _replaced[id(optimizer)] = []
    for parameter in _fused_parameters(optimizer):
        if parameter.grad is not None and not _lie_alike(parameter.grad, parameter):
            replaced.append((parameter, parameter.grad))
            parameter.grad = _laid_out_as(parameter.grad, parameter)
        state = optimizer.state.get(parameter, {})
        for name, value in _averages(state, parameter):
            state[name] = _laid_out_as(value, parameter)


def _give_back(optimizer: Optimizer, _args: object, _kwargs: object) -> None:
    for parameter, gradient in _replaced.pop(id(optimizer), ()):
        if parameter.grad is not None:
            # Fused steps divide gradients by a scale, in place.
            gradient.copy_(parameter.grad)
            parameter.grad = gradient


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
    return in_order(value, dimension_order(tuple(parameter.shape), parameter.stride()))
