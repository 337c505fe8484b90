"""Optimizers whose steps go by how tensors lie, on weights that were stored anew: what they read is laid out for them.

Why: fused kernels go through the memory of a parameter, its gradient and its averages side by side, whatever their
strides (SGD and Adam on a CPU, torch 2.15), and LBFGS takes each gradient for one line of numbers (`view(-1)`).
Gradients that a backward computes, and averages that an optimizer makes, lie as their parameter does; those that a
program assigns, or loads with a checkpoint, lie as it did before.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from frx_graph.facts.layout import dimension_order, strides_for_order
from frx_graph.facts.ordered_tensor import in_order

_IMAGE_WEIGHTS = (4, 5)
"""Dimensions of weights that are stored anew."""


@functools.cache
def keep_steps_right() -> None:
    """See to it that all optimizers of the process find what they read as they need it; the first call does."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_give_back)


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A gradient that `parameter` had, which may be a part of a tensor of all gradients, and what it has in a step."""

    parameter: Tensor
    own: Tensor
    laid_out: Tensor


_replaced = WeakIdKeyDictionary()
"""Lists of `_Replaced`, by the optimizer in whose step they were."""

_Strides = tuple[int, ...]
_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments | None:
    """The arguments of the step, with a closure that lays out what it has computed; None to leave them."""
    # Of a step that has raised; or of one that calls the step that it overrides, which torch sees as well.
    _give_back(optimizer)
    if next(_read_by_memory(optimizer), None) is None:
        return None
    positional = len(args) > 1 and _takes_closure(optimizer)
    closure = args[1] if positional else kwargs.get("closure")
    if closure is None:
        _lay_out(optimizer)
        return None

    @functools.wraps(closure)
    def computed() -> Any:
        loss = closure()
        _lay_out(optimizer)
        return loss

    if positional:
        return (args[0], computed, *args[2:]), kwargs
    return args, {**kwargs, "closure": computed}


def _takes_closure(optimizer: Optimizer) -> bool:
    """Whether the first argument of a step is one."""
    _, *names = inspect.signature(type(optimizer).step).parameters
    return names[:1] == ["closure"]


def _lay_out(optimizer: Optimizer) -> None:
    replaced = _replaced.setdefault(optimizer, [])
    for parameter in _read_by_memory(optimizer):
        gradient, strides = parameter.grad, _needed(optimizer, parameter)
        if gradient is not None and not _lies_so(gradient, strides):
            parameter.grad = _laid_out(gradient, strides)
            replaced.append(_Replaced(parameter, gradient, parameter.grad))
        state = optimizer.state.get(parameter, {})
        for name, value in _averages(state, parameter):
            state[name] = _laid_out(value, parameter.stride())


def _give_back(optimizer: Optimizer, *_call: object) -> None:
    for gradient in _replaced.pop(optimizer, ()):
        if gradient.parameter.grad is gradient.laid_out:
            # Fused steps divide gradients by a scale, in place.
            with torch.no_grad():
                gradient.own.copy_(gradient.laid_out)
            gradient.parameter.grad = gradient.own


def _read_by_memory(optimizer: Optimizer) -> Iterator[Tensor]:
    flat = isinstance(optimizer, LBFGS)
    for group in optimizer.param_groups:
        if flat or group.get("fused"):
            yield from (parameter for parameter in group["params"] if parameter.dim() in _IMAGE_WEIGHTS)


def _needed(optimizer: Optimizer, parameter: Tensor) -> _Strides:
    if isinstance(optimizer, LBFGS):
        return strides_for_order(tuple(parameter.shape), tuple(range(parameter.dim())))
    return parameter.stride()


def _averages(state: Mapping[str, Any], parameter: Tensor) -> list[tuple[str, Tensor]]:
    """Those that lie otherwise."""
    return [
        (name, value)
        for name, value in state.items()
        if isinstance(value, Tensor) and value.shape == parameter.shape and not _lies_so(value, parameter.stride())
    ]


def _lies_so(value: Tensor, strides: _Strides) -> bool:
    """True where each element is where these strides have it; those of dimensions of size 1 say nothing."""
    own = value.stride()
    if own == strides:
        return True
    return all(size == 1 or mine == its for size, mine, its in zip(value.shape, own, strides, strict=True))


def _laid_out(value: Tensor, strides: _Strides) -> Tensor:
    with torch.no_grad():
        return in_order(value, dimension_order(tuple(value.shape), strides))
