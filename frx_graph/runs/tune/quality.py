"""Gates that a configuration must pass before it is timed, by its whole run beside the baseline's.

A program that is fast because it computes something else, or that ends in the middle, is not fast.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.trials.configuration_trial import RunSeen

FEWEST_STEPS = 3
MOST_MEMORY = 0.9
"""Share of the memory that a run may use."""
_FINAL_SHARE = 4
"""The final loss is the mean of the last quarter, since the loss of one batch depends on the batch."""
_DRIFT = ("output_abs_drift", "output_max_abs_diff")
"""Differences that the program has computed itself; for all other outputs, the values of both runs are compared."""


def find_failures(seen: RunSeen, baseline: RunSeen, settings: TuneSettings) -> Iterator[str]:
    """Yield a line for each gate that `seen` fails; none: it may be timed."""
    if seen.exit_code:
        yield seen.ending
    elif not seen.in_time and seen.steps < FEWEST_STEPS:
        yield f"{seen.ending}: raise --time-budget-s"
    if seen.steps < FEWEST_STEPS:
        yield f"only {seen.steps} steps were seen, and {FEWEST_STEPS} are needed"
    elif seen.exit_code == 0 and seen.steps < _count_needed_steps(seen, baseline):
        yield f"it ends after {seen.steps} steps, and the baseline makes {baseline.steps}"
    if seen.memory_ratio is not None and seen.memory_ratio >= MOST_MEMORY:
        yield f"memory: it uses {100 * seen.memory_ratio:.0f} % of the total"
    yield from _check_losses(seen, baseline, settings)
    if settings.quality_checks:
        yield from _check_drift(seen, baseline, settings)


def compute_final_loss(losses: Sequence[float | None]) -> float | None:
    """Return the mean of the last quarter; None without losses, or if one of these is not finite."""
    last = losses[-max(1, len(losses) // _FINAL_SHARE) :]
    known = [loss for loss in last if loss is not None]
    return statistics.fmean(known) if known and len(known) == len(last) else None


def _count_needed_steps(seen: RunSeen, baseline: RunSeen) -> int:
    """Return the fewest steps that process as many samples as the baseline: fewer with larger batches."""
    if not (seen.batch_size and baseline.batch_size):
        return baseline.steps
    return int(baseline.steps * min(1.0, baseline.batch_size / seen.batch_size))


def _check_losses(seen: RunSeen, baseline: RunSeen, settings: TuneSettings) -> Iterator[str]:
    if not seen.finite and not settings.allow_nonfinite_loss:
        # If the baseline does the same, the candidate is not the cause, but the loss is still no basis for a decision.
        also = "" if baseline.finite else ", as one of the baseline's"
        yield f"quality: a loss is not finite{also}"
        return
    first = compute_final_loss(seen.losses[: max(1, len(seen.losses) // _FINAL_SHARE)])
    final, wanted = compute_final_loss(seen.losses), compute_final_loss(baseline.losses)
    if final is None:
        if not seen.losses and baseline.losses:
            yield "quality: it reports no loss, and the baseline does"
        return
    if wanted is not None and final > wanted + settings.max_final_loss_regression * abs(wanted):
        allowed = 100 * settings.max_final_loss_regression
        yield f"quality: final loss {final:.4g} exceeds baseline {wanted:.4g} by more than {allowed:g} %"
    if first is not None and final > first + settings.max_loss_divergence * abs(first):
        allowed = 100 * settings.max_loss_divergence
        yield f"quality: the loss grows from {first:.4g} to {final:.4g}, by more than {allowed:g} %"


def _check_drift(seen: RunSeen, baseline: RunSeen, settings: TuneSettings) -> Iterator[str]:
    before, after = dict(baseline.outputs), dict(seen.outputs)
    for name in before:
        if name not in after:
            yield f"quality: it reports no {name}, and the baseline does"
    for name, value in after.items():
        wanted = 0.0 if name in _DRIFT else before.get(name)
        if value is None:
            yield f"quality: {name} is not finite"
        elif wanted is not None and abs(value - wanted) > settings.output_abs_tolerance:
            off, allowed = abs(value - wanted), settings.output_abs_tolerance
            yield f"quality: {name} is off by {off:.4g}, and {allowed:g} is allowed"
