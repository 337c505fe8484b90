"""Whether a candidate's results are as good as the baseline's: each is compared with the same program in float64.

The rule is that of torch's own accuracy oracle (`torch._dynamo.utils.same`): the root mean square of the candidate's
error may be a multiple of the baseline's, plus a tenth of a tolerance. Two things are stricter: the tolerance is that
of values of magnitude 1, and shrinks with smaller ones, as gradients are; and the largest error counts besides, so that
one wrong element of a million is found.

Where rounding decides more than a last digit, as which inputs of a ReLU are above 0, one run of the baseline's says
little of its own error. Before a candidate is refused, the baseline is therefore run again on inputs and weights that
were rounded once more, and the largest of its errors counts. Observed: gradients behind ten convolutions with ReLUs are
5e-7 of their size off in plain layout, 2e-5 in channels-last, and 4e-4 after rounding the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
_HALF_TOLERANCE = 1e-3
"""What torch's benchmarks compare half precision with (`benchmarks/dynamo/common.py`)."""
_LARGEST = 10.0
"""How many times the baseline's largest error a candidate's may be: single elements differ more than all together."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as in the baseline: which result, in which draw, and how."""

    name: str
    draw: int
    detail: str


@dataclass(frozen=True, slots=True)
class Multipliers:
    """How many times the baseline's own error a candidate's may be; `half` for values in half precision."""

    full: float
    half: float

    def of(self, dtype: torch.dtype) -> float:
        """The one for values of this type."""
        return self.half if dtype in (torch.float16, torch.bfloat16) else self.full


def value_difference(
    ours: Tensor, theirs: Tensor, exact: Tensor | None, allowed: Multipliers, noisy: Sequence[Tensor] = ()
) -> str | None:
    """How `theirs`, the candidate's, is worse than `ours`, the baseline's; None if it is not. `exact` is the same in
    float64, where that could be had: else both may differ by the tolerance. `noisy` are what the baseline makes of
    values that were rounded once more: their errors count as its own."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{_form(theirs)} instead of {_form(ours)}"
    if not ours.dtype.is_floating_point and not ours.dtype.is_complex:
        return None if torch.equal(ours, theirs) else f"{int((ours != theirs).sum())} of {ours.numel()} values differ"
    if ours.dtype.is_complex:
        ours, theirs = torch.view_as_real(ours.resolve_conj()), torch.view_as_real(theirs.resolve_conj())
        noisy = [torch.view_as_real(one.resolve_conj()) for one in noisy]
        exact = None if exact is None else torch.view_as_real(exact.resolve_conj())
    if torch.equal(ours, theirs):
        return None
    if (found := _not_finite(ours, theirs)) is not None:
        return found
    dtype = ours.dtype
    finite = torch.isfinite(ours) if exact is None else torch.isfinite(ours) & torch.isfinite(exact)
    ours, theirs = ours.double()[finite], theirs.double()[finite]
    reference = ours if exact is None else exact.double()[finite]
    if reference.numel() == 0:
        return None
    owns = [_errors(reference, values) for values in (ours, *(one.double()[finite] for one in noisy))]
    own = _Errors(max(one.mean for one in owns), max(one.largest for one in owns))
    other = _errors(reference, theirs)
    scale = min(1.0, float(reference.square().mean().sqrt()))
    tolerance = _TOLERANCE.get(dtype, _HALF_TOLERANCE) * scale
    times = allowed.of(dtype)
    if other.mean > times * own.mean + (tolerance / 10 if exact is not None else tolerance):
        return f"error {other.mean:.2e} (root mean square) where the baseline's is {own.mean:.2e}"
    if other.largest > _LARGEST * (times * own.largest + tolerance):
        return f"an error of {other.largest:.2e} where the baseline's largest is {own.largest:.2e}"
    return None


@dataclass(frozen=True, slots=True)
class _Errors:
    mean: float
    largest: float


def _errors(reference: Tensor, values: Tensor) -> _Errors:
    error = (values - reference).abs()
    return _Errors(math.sqrt(float(error.square().mean())), float(error.max()))


def _not_finite(ours: Tensor, theirs: Tensor) -> str | None:
    for kind, of in _KINDS:
        if not torch.equal(of(ours), of(theirs)):
            return f"{kind} in {int(of(theirs).sum())} values, not in {int(of(ours).sum())}"
    return None


_KINDS = (("NaN", torch.isnan), ("+Inf", torch.isposinf), ("-Inf", torch.isneginf))


def _form(value: Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def describe(differences: tuple[Difference, ...], most: int = 3) -> Iterator[str]:
    """A line each for the first ones, and how many more there are."""
    for difference in differences[:most]:
        yield f"{difference.name}, draw {difference.draw}: {difference.detail}"
    if len(differences) > most:
        yield f"and {len(differences) - most} more"
