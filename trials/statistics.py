"""Test the log ratios of quads: a trimmed t-test for a fixed number, and a safe t-test that may be read at any time.

The trimmed t decides at the end of a trial, with no look at the data before. Repeating such a test after every quad
until it gives the hoped-for answer finds differences between equal programs; the safe t-test allows repeated looks.
Neither test sees the effect that a process has on all its quads. Only pairs of processes show that, and there are few.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from scipy.special import stdtr, stdtrit

TRIM = 0.2
"""Share of the values left out on each side. Wilcox (Introduction to Robust Estimation and Hypothesis Testing)
recommends it if the weight of the tails is unknown. Of 21 quads it leaves out the 4 lowest and 4 highest."""

EFFECT_VARIANCE = 1.0
"""Variance of the effects that the safe t-test expects, in standard deviations of one quad: a prior that is worth as
much as one quad (unit information, Kass and Wasserman 1995)."""

PRIOR_DEGREES = 1
"""Degrees of freedom that an assumed deviation of process pairs is worth: as many as one more pair adds."""


def convert_to_ratio(log_ratio: float) -> float:
    """Return the ratio of a logarithm; infinite if no float holds it, as two quads that are far apart bound nothing."""
    return math.exp(log_ratio) if log_ratio <= math.log(sys.float_info.max) else math.inf


def compute_trimmed_interval(log_ratios: Sequence[float], alpha: float) -> tuple[float, float]:
    """Bounds of the mean, each of which it exceeds with probability `alpha`: Tukey and McLaughlin's trimmed t (1963).

    The bounds are the mean of the values that trimming leaves, plus or minus Student's t times the standard error.
    Student's t has one degree of freedom less than values are left. The standard error is the standard deviation of the
    winsorized values (trimmed ones moved to the nearest that is left) over `(1 - 2 * TRIM) * sqrt(n)`. Needs at least
    two values.
    """
    from scipy.stats import mstats  # a quarter of a second, which a program that is only watched need not wait for

    low, high = mstats.trimmed_mean_ci(list(log_ratios), limits=(TRIM, TRIM), alpha=2 * alpha)
    return float(low), float(high)


def compute_safe_t(log_ratios: Sequence[float], above: float = 0.0) -> float:
    """Logarithm of the e-value against the mean being at most `above`: evidence that may be looked at any time.

    If the mean is at most `above`, the probability that the e-value ever reaches `1 / alpha`, for any number of values,
    is at most `alpha` (Ville's inequality). Let the values `x` (less `above`) come from a normal distribution with mean
    `d * s` and standard deviation `s`. The e-value is a likelihood ratio of the values up to their common scale: that
    under `d` over that under `d = 0`. It is averaged over a half-normal distribution of `d > 0` with variance
    `g = EFFECT_VARIANCE`. A likelihood ratio of quantities that do not depend on `s` is a martingale if `d = 0`, and so
    is an average of such ratios. Sources: Grünwald, de Heide and Koolen, Safe Testing, 2024; Wang and Ramdas,
    Anytime-valid t-tests and confidence sequences, 2023.

    In closed form: with `n` values of mean `m`, sum of squares `Q` and `S = Q - (n * m)**2 * g / (1 + n * g)`, for one
    `s`, the integral over all `d` is `(1 + n * g)**-0.5 * exp(-S / (2 * s**2))`; over `d > 0` it is that times
    `Phi(n * m * sqrt(g / (1 + n * g)) / s)`, and twice that for the half-normal. Integrated over `ds / s**(n + 1)`, the
    first factor is proportional to `S**(-n / 2)`, where `d = 0` has `Q**(-n / 2)`; `S / s**2` is then distributed as
    chi-squared with `n` degrees of freedom, so the mean of `Phi` is Student's distribution function.

    For a mean below `above` the same bound holds: taking a constant off all values lowers
    `m` and leaves their deviations as they are, so the t-statistic, and with it the e-value, is lower for every `n`.

    0 (no evidence) without values; minus infinity where Student's distribution function is too small for a float.
    """
    n = len(log_ratios)
    mean = sum(log_ratios) / n - above if n else 0.0
    if mean == 0.0:
        return -0.5 * math.log1p(n * EFFECT_VARIANCE)
    deviations = sum((value - above - mean) ** 2 for value in log_ratios)
    shrink = 1 + n * EFFECT_VARIANCE
    total = deviations + n * mean**2
    shrunk = deviations + n * mean**2 / shrink
    positive = stdtr(n, n * mean * math.sqrt(n * EFFECT_VARIANCE / (shrink * shrunk)))
    if positive == 0.0:
        return -math.inf
    return math.log(2 * positive) - 0.5 * math.log(shrink) + n / 2 * math.log(total / shrunk)


def compute_safe_interval(log_ratios: Sequence[float], alpha: float) -> tuple[float, float]:
    """Bounds between which the mean is, at all times at once, with probability `1 - 2 * alpha`.

    The bounds enclose all means against which the two-sided e-value is below `1 / (2 * alpha)` (as in Wang and Ramdas
    2023). That e-value is averaged over a normal distribution of effects. Let `D` be the sum of squared deviations, and
    `k` the square of the distance from the mean times `n`. The e-value is then
    `(1 + n * g)**-0.5 * ((D + k) / (D + k / (1 + n * g)))**(n / 2)`, which is solved for `k`. The bounds are infinite
    if there are too few values to exclude any mean.
    """
    n = len(log_ratios)
    if n < 2:
        return -math.inf, math.inf
    mean = sum(log_ratios) / n
    deviations = sum((value - mean) ** 2 for value in log_ratios)
    shrink = 1 + n * EFFECT_VARIANCE
    bound = math.exp(2 / n * (0.5 * math.log(shrink) - math.log(2 * alpha)))
    if bound >= shrink:
        return -math.inf, math.inf
    radius = math.sqrt(deviations / n * (bound - 1) / (1 - bound / shrink))
    return mean - radius, mean + radius


def compute_pairs_bound(log_ratios: Sequence[float], assumed_deviation: float, alpha: float) -> float:
    """Bound that the mean of a few process pairs' log ratios exceeds with probability `alpha`: a moderated t (Smyth,
    Linear Models and Empirical Bayes Methods, 2004).

    A few pairs give a poor estimate of their variance, and Student's t alone would then prove little. So the variance
    is pooled with that of the assumed deviation, worth `PRIOR_DEGREES` degrees of freedom. Pairs that agree by chance
    therefore prove no more. If pairs differ by more than was assumed, the larger deviation counts. Raises `ValueError`
    without pairs.
    """
    if not log_ratios:
        raise ValueError("no process pairs")
    pairs = len(log_ratios)
    mean = sum(log_ratios) / pairs
    degrees = PRIOR_DEGREES + pairs - 1
    variance = (PRIOR_DEGREES * assumed_deviation**2 + sum((ratio - mean) ** 2 for ratio in log_ratios)) / degrees
    return mean - float(stdtrit(degrees, 1 - alpha)) * math.sqrt(variance / pairs)
