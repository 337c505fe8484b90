"""Whether a model computes the same when weights are stored anew, or inputs given, with other strides.

Torch's operators do, up to rounding. A program need not: it may ask for strides and go another way, be told places in
memory by `as_strided`, or call operators of which nothing is known. So the functions that the program calls have to be
the same, and the values as well, as far as rounding explains them: where they differ by more than the tolerance of a
trial, the graph is run some more times with every result moved by some units of its last place, and by how much that
moves values counts (`frx_graph.trials.numerics`).

Seen is one call: a program that asks for strides elsewhere, in another mode or behind a condition that does not hold in
this call, is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from frx_graph.capture.observed_call import ObservedCall, calls_differ
from frx_graph.trials.numerics import Errors, Multipliers, rounding_noise, value_difference
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.rounding_noise import RoundingNoise

_NOISY_RUNS = 5
"""As many explain what channels-last does to gradients, see `RoundingNoise`."""
_UNITS = 8.0
"""Of the last place, that `RoundingNoise` moves results in single precision by."""
_HALF = (torch.float16, torch.bfloat16)

Run = Callable[[AbstractContextManager[Any] | None], ObservedCall]
"""Runs the graph, with the weights as they were, in a mode that disturbs it."""


def computes_otherwise(before: ObservedCall, after: ObservedCall, noisy: Run) -> str | None:
    """How `after` differs from `before`; None if rounding explains all of it."""
    found = calls_differ(before, after)
    if found is not None:
        return found
    if before.values.keys() != after.values.keys():
        return "it returns other tensors, or gives other gradients"
    if not _differing(before.values, after.values, {}):
        return None
    runs = [noisy(_Noise(seed)).values for seed in range(_NOISY_RUNS)]
    differing = _differing(before.values, after.values, _moved(before.values, runs))
    for name, detail in differing.items():
        value = before.values[name]
        # What is no number has no size: it is excused if rounding changes it, too.
        counted = not (value.is_floating_point() or value.is_complex())
        if not counted or all(_equal(value, run.get(name)) for run in runs):
            return f"{name}: {detail}"
    return None


def _differing(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], noise: Mapping[str, Errors]
) -> dict[str, str]:
    policy = TrialPolicy()
    allowed = Multipliers(policy.numerics_multiplier, policy.numerics_multiplier_half)
    found = {
        name: value_difference(value, after[name], None, allowed, noise.get(name)) for name, value in before.items()
    }
    return {name: detail for name, detail in found.items() if detail is not None}


def _moved(before: Mapping[str, Tensor], runs: Sequence[Mapping[str, Tensor]]) -> dict[str, Errors]:
    """By how much rounding moves each value. Trials compare half precision with float64; here nothing but the noise
    tells what rounding does to it."""
    halves = {name: value for name, value in before.items() if value.dtype in _HALF}
    own = {name: _largest(value, [run[name] for run in runs if name in run]) for name, value in halves.items()}
    found = {**rounding_noise(before, runs), **own}
    # A mean of many elements averages the noise out, but not what a sum in another order rounds off: of outputs and
    # statistics the error is at least some units of the last place of what the model is given.
    sizes = [_size(value) for name, value in before.items() if name.startswith("argument ")]
    given = min(1.0, max(sizes, default=1.0))
    for name, noise in found.items():
        if not name.startswith("gradient of "):
            least = _UNITS * torch.finfo(before[name].dtype).eps * given
            found[name] = noise.at_least(Errors(least, least))
    return found


def _size(value: Tensor) -> float:
    """The root mean square; 1 for what is no number, or none."""
    finite = value[value.isfinite()].double() if value.is_floating_point() else torch.empty(0)
    return float(finite.square().mean().sqrt()) if finite.numel() else 1.0


def _largest(value: Tensor, runs: Iterable[Tensor]) -> Errors:
    found = Errors(0.0, 0.0)
    for run in runs:
        if run.shape == value.shape and value.numel():
            error = (run.double() - value.double()).nan_to_num(0.0, 0.0, 0.0).abs()
            found = found.at_least(Errors(float(error.square().mean().sqrt()), float(error.max())))
    return found


def _equal(value: Tensor, other: Tensor | None) -> bool:
    return other is not None and value.shape == other.shape and torch.equal(value, other)


class _Noise(RoundingNoise):
    """Moves results in half precision, too, by up to one unit: they are rounded once, sums are kept in single."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`, and move its results."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if not isinstance(func, OpOverload) or any(made.alias_info is not None for made in func._schema.returns):
            return result
        for value in pytree.tree_leaves(result):
            if isinstance(value, Tensor) and value.dtype in _HALF and value.layout is torch.strided:
                single = value.float()
                moves = self._moves(single) * (torch.finfo(value.dtype).eps / torch.finfo(torch.float32).eps / _UNITS)
                value.copy_(single * (1 + moves))
        return result
