"""Judge if a candidate's results are as good as the baseline's: each is compared with the same program in float64.

The rule follows torch's accuracy oracle (`torch._dynamo.utils.same`): the root mean square of the candidate's error may
be a multiple of the baseline's, plus a tenth of a tolerance. It is stricter in two ways. The tolerance applies to
values of magnitude 1, and shrinks with smaller ones, such as gradients. The largest error also counts, so one wrong
element of a million is found.

Rounding can decide more than a last digit, for example the sign of a ReLU's input. One run of the baseline then shows
little of the error. Before a candidate is refused, the program is therefore run with every result moved by some units
in the last place (`frx_graph.trials.rounding_noise`). The resulting error of the program's results counts. Observed:
gradients behind ten convolutions with ReLUs are 5e-7 of their size off in plain layout, 2e-5 in channels-last, and 4e-4
where only the weights are moved.

Both programs are also compared with eager. Here a difference counts only if rounding does not explain it: a compiler
adds up in another order than eager, and less exactly. Observed on the gradient of a bias under 4,608 pixels: relative
errors of 2e-6 in eager, and of 2e-5 under Inductor. A baseline that computes something else than eager excuses nothing:
a candidate must then agree with eager.

The baseline's error excuses the candidate's only as far as rounding explains it. If it is larger, the float64 run has
computed something else: generators draw other numbers for it, or the program's state has moved on. Then the two arms
are compared with each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
_HALF_TOLERANCE = 1e-3
"""The tolerance of torch's benchmarks for half precision (`benchmarks/dynamo/common.py`)."""
_LARGEST = 10.0
"""Multiple of the baseline's largest error that a candidate's may be: single elements differ more than all together."""
_NEGLIGIBLE = 1e-3
_MOST_SHARED = 0.02
"""Share of a gradient's size by which another gradient's noise excuses it."""
HALF = (torch.float16, torch.bfloat16)
"""The types of half precision."""
_OWN = {torch.float64: 1e-6, torch.float32: 1e-3}
_HALF_OWN = 0.05
"""Share of a result's size up to which an error of the baseline counts as rounding without a check. Rounding noise must
reproduce a larger error. Observed with 4 to 12 convolutions, batch norms and ReLUs: 3e-6 in single precision, 4e-2 in
bfloat16. With 30 of them: 8e-5, and 0.6, which noise in bfloat16 reproduces."""
_HALF_ADDED = 0.02
"""Share of a result's size by which sums in another order may differ in half precision; else it is the tolerance."""
_REPEATED, _HALF_REPEATED = 0.02, 0.1
"""Share of a result's size by which two runs of the same step may differ: sums in random order differ by less."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference from the baseline: the result, the draw, and a description."""

    name: str
    draw: int
    detail: str


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Multiples of the baseline's own error that a candidate's may be; `half` for values in half precision."""

    full: float
    half: float

    def get_multiple(self, dtype: torch.dtype) -> float:
        """Return the multiple for values of this type."""
        return self.half if dtype in HALF else self.full


@dataclass(frozen=True, slots=True)
class Errors:
    """Root of the mean square, and the largest."""

    mean: float
    largest: float

    def take_larger(self, other: Errors) -> Errors:
        """Return the larger of each."""
        return Errors(max(self.mean, other.mean), max(self.largest, other.largest))

    def scale(self, factor: float) -> Errors:
        """Return the errors of values `factor` times as large."""
        return Errors(factor * self.mean, factor * self.largest)


def measure_rounding_noise(reference: Mapping[str, Tensor], runs: Iterable[Mapping[str, Tensor]]) -> dict[str, Errors]:
    """Return the effect of rounding on each result, in the worst of `runs` with noise; `reference` is without.

    Chance decides which input of a ReLU changes its sign, and that input moves only the gradients that depend on it. So
    the gradient that moves most, relative to its size, stands for all gradients, up to a share. Beyond that share each
    gradient counts only for itself, as outputs and buffers do. Gradients a thousand times smaller than the largest are
    noise themselves.
    """
    found = {name: Errors(0.0, 0.0) for name, value in reference.items() if value.is_floating_point()}
    for run in runs:
        for name in found:
            if name in run:
                found[name] = found[name].take_larger(_measure_move(reference[name].double(), run[name]))
        # Drop it before the next run: each is as large as all parameters and gradients.
        del run
    gradients = [name for name in found if _is_gradient(name)]
    sizes = {name: _compute_rms(reference[name].double()) for name in gradients}
    smallest = _NEGLIGIBLE * max(sizes.values(), default=0.0)
    worst = Errors(0.0, 0.0)
    for name in gradients:
        if sizes[name] > smallest:
            worst = worst.take_larger(found[name].scale(1 / sizes[name]))
    shared = worst.scale(min(1.0, _MOST_SHARED / worst.mean)) if worst.mean else worst
    for name in gradients:
        found[name] = found[name].take_larger(shared.scale(max(sizes[name], smallest)))
    return found


def _measure_move(reference: Tensor, value: Tensor) -> Errors:
    if value.shape == reference.shape and value.numel():
        found = _compute_errors(reference, value.double())
        # A value that overflows by rounding alone gives no bound on its error.
        if math.isfinite(found.largest):
            return found
    return Errors(0.0, 0.0)


def _compute_rms(value: Tensor) -> float:
    finite = value[torch.isfinite(value)]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of one result. `difference` says how the candidate's is worse, if it is; `share` is the part of the
    allowed error that it takes, or None."""

    difference: str | None
    share: float | None = None


def judge_value(
    ours: Tensor,
    theirs: Tensor,
    exact: Tensor | None,
    allowed: Multipliers,
    noise: Errors | None = None,
    least_size: float = 0.0,
    owner: str = "the baseline",
) -> Judgement:
    """Judge if `theirs`, the candidate's result, is worse than `ours`, the baseline's or another `owner`'s.

    `exact` is the result in float64, if `ours` is its rounded value; without it both may differ by the tolerance.
    `noise` is the distance by which rounding may move the baseline's result. It counts as the baseline's error, except
    in half precision, where a single run shows the effect of rounding. `least_size` is the size of larger results
    beside this one, if there are any.
    """
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return Judgement(f"{_format_shape(theirs)} instead of {_format_shape(ours)}")
    if not ours.dtype.is_floating_point and not ours.dtype.is_complex:
        equal = torch.equal(ours, theirs)
        return Judgement(None if equal else f"{int((ours != theirs).sum())} of {ours.numel()} values differ")
    if ours.dtype.is_complex:
        ours, theirs = torch.view_as_real(ours.resolve_conj()), torch.view_as_real(theirs.resolve_conj())
        exact = None if exact is None else torch.view_as_real(exact.resolve_conj())
    if torch.equal(ours, theirs):
        return Judgement(None, 0.0)
    if (found := _find_not_finite(ours, theirs)) is not None:
        return Judgement(found)
    dtype = ours.dtype
    finite = torch.isfinite(ours)
    doubt = ""
    if exact is not None and (exact.shape != ours.shape or not bool(torch.isfinite(exact[finite]).all())):
        exact, doubt = None, ", which is not finite in float64, or of another shape"
    ours, theirs = ours.double()[finite], theirs.double()[finite]
    reference = ours if exact is None else exact.double()[finite]
    if reference.numel() == 0:
        return Judgement(None)
    times = allowed.get_multiple(dtype)
    own = _compute_errors(reference, ours)
    if exact is not None and not _is_rounding(own, max(_compute_rms(reference), least_size), dtype, times, noise):
        doubt = f", whose own error of {own.mean:.2e} against float64 is more than rounding explains"
        exact, reference, own = None, ours, Errors(0.0, 0.0)
    if noise is not None and (exact is None or dtype not in HALF):
        own = own.take_larger(noise)
    other = _compute_errors(reference, theirs)
    tolerance = _TOLERANCE.get(dtype, _HALF_TOLERANCE) * min(1.0, _compute_rms(reference))
    mean_allowed = times * own.mean + (tolerance / 10 if exact is not None else tolerance)
    largest_allowed = _LARGEST * (times * own.largest + tolerance)
    more, larger = other.mean > mean_allowed, other.largest > largest_allowed
    share = max(_compute_share(other.mean, mean_allowed), _compute_share(other.largest, largest_allowed))
    if doubt and (more or larger):
        found = f"{other.mean:.2e} (root mean square), at most {other.largest:.2e}, from {owner}'s{doubt}"
    elif more:
        found = f"error {other.mean:.2e} (root mean square) where {owner}'s is {own.mean:.2e}"
    elif larger:
        found = f"an error of {other.largest:.2e} where {owner}'s largest is {own.largest:.2e}"
    return Judgement(found, share)


def _compute_share(error: float, allowed: float) -> float:
    if not error:
        return 0.0
    return error / allowed if allowed else math.inf


def _is_rounding(own: Errors, size: float, dtype: torch.dtype, times: float, noise: Errors | None) -> bool:
    plain = _OWN.get(dtype, _HALF_OWN) * size
    moved = noise or Errors(0.0, 0.0)
    return own.mean <= max(plain, times * moved.mean) and own.largest <= _LARGEST * max(plain, times * moved.largest)


def is_repeated(first: Tensor, again: Tensor, least_size: float = 0.0) -> bool:
    """Return True if two runs of the same step from the same seed agree in this result, as far as any two do."""
    found = _measure_difference(first, again, least_size)
    most = _HALF_REPEATED if first.dtype in HALF else _REPEATED
    # A result that is only the remainder of a sum is only rounding.
    rest = _TOLERANCE.get(first.dtype, _HALF_TOLERANCE) / 10
    return found is not None and found[0].mean <= most * found[1] + rest


def is_within_rounding(reference: Tensor, value: Tensor, least_size: float = 0.0) -> bool:
    """Return True if two programs differ in this result by no more than sums in another order do."""
    found = _measure_difference(reference, value, least_size)
    if found is None:
        return False
    errors, size = found
    most = _TOLERANCE.get(reference.dtype, _HALF_ADDED) * size
    return errors.mean <= most and errors.largest <= _LARGEST * most


def _measure_difference(first: Tensor, again: Tensor, least_size: float) -> tuple[Errors, float] | None:
    """Return the errors of `again`, and the size of `first`; None if their kinds of values or exact values differ."""
    if first.dtype != again.dtype or first.shape != again.shape:
        return None
    if not first.dtype.is_floating_point and not first.dtype.is_complex:
        return (Errors(0.0, 0.0), 0.0) if torch.equal(first, again) else None
    if first.dtype.is_complex:
        first, again = torch.view_as_real(first.resolve_conj()), torch.view_as_real(again.resolve_conj())
    if _find_not_finite(first, again) is not None:
        return None
    finite = torch.isfinite(first)
    before, after = first.double()[finite], again.double()[finite]
    if before.numel() == 0:
        return Errors(0.0, 0.0), 0.0
    return _compute_errors(before, after), max(_compute_rms(before), least_size)


def compute_least_sizes(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return for each gradient the size of the largest one, and likewise for parameters after a step. Much smaller
    gradients may be only rounding, such as those that a batch norm cancels."""
    found: dict[str, float] = {}
    for kind in (_is_gradient, lambda name: name.endswith(" after a step")):
        names = [name for name, value in values.items() if kind(name) and value.is_floating_point()]
        largest = max((_compute_rms(values[name].double()) for name in names), default=0.0)
        found |= dict.fromkeys(names, largest)
    return found


def _is_gradient(name: str) -> bool:
    return name.startswith("gradient of ")


def _compute_errors(reference: Tensor, values: Tensor) -> Errors:
    error = (values - reference).abs()
    return Errors(math.sqrt(float(error.square().mean())), float(error.max()))


def _find_not_finite(ours: Tensor, theirs: Tensor) -> str | None:
    for kind, of in _KINDS:
        if not torch.equal(of(ours), of(theirs)):
            return f"{kind} in {int(of(theirs).sum())} values, not in {int(of(ours).sum())}"
    return None


_KINDS = (("NaN", torch.isnan), ("+Inf", torch.isposinf), ("-Inf", torch.isneginf))


def _format_shape(value: Tensor) -> str:
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def describe_differences(differences: tuple[Difference, ...], most: int = 3) -> Iterator[str]:
    """Yield a line for each of the first ones, and one that counts the rest."""
    for difference in differences[:most]:
        yield f"{difference.name}, draw {difference.draw}: {difference.detail}"
    if len(differences) > most:
        yield f"and {len(differences) - most} more"
