"""The trimmed t-test against its definition; the safe t-test against integrals and by simulation."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from frx_graph.trials.statistics import (
    PRIOR_DEGREES,
    compute_pairs_bound,
    compute_safe_interval,
    compute_safe_t,
    compute_trimmed_interval,
)

ratios = st.lists(st.floats(-0.5, 0.5).map(lambda value: round(value, 6)), min_size=2, max_size=40)


def test_the_trimmed_interval_of_ten_numbers_by_hand() -> None:
    # 3 to 8 are left, winsorized 3 3 3 4 5 6 7 8 8 8: mean 5.5, sum of squares 42.5. Student's t of 5 degrees of
    # freedom exceeds 2.015048 with probability 0.05.
    error = math.sqrt(42.5 / 9) / (0.6 * math.sqrt(10))
    low, high = compute_trimmed_interval([10.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0], 0.05)
    assert low == pytest.approx(5.5 - 2.0150484 * error, rel=1e-6)
    assert high == pytest.approx(5.5 + 2.0150484 * error, rel=1e-6)


def test_outliers_on_both_sides_do_not_widen_the_trimmed_interval() -> None:
    values = [0.01 * number for number in range(21)]
    wild = [-9.0, *values[1:-1], 9.0]
    assert compute_trimmed_interval(wild, 0.001) == pytest.approx(compute_trimmed_interval(values, 0.001))


def test_few_numbers_are_not_trimmed_and_bounded_as_if_they_were() -> None:
    values = [0.1, 0.2, 0.4]
    error = stats.sem(values) / 0.6
    assert compute_trimmed_interval(values, 0.05)[0] == pytest.approx(sum(values) / 3 - stats.t.ppf(0.95, 2) * error)


@given(ratios)
def test_negating_turns_intervals_round(values: list[float]) -> None:
    negated = [-value for value in values]
    for interval in (compute_trimmed_interval, compute_safe_interval):
        low, high = interval(values, 0.01)
        assert interval(negated, 0.01) == pytest.approx((-high, -low), abs=1e-12)


def integrated_e(values: list[float]) -> float:
    """The half-normal average of the ratio of noncentral to central densities of the t-statistic."""
    n = len(values)
    t = sum(values) / n / stats.sem(values)

    def weighted(effect: float) -> float:
        ratio = stats.nct.pdf(t, n - 1, math.sqrt(n) * effect) / stats.t.pdf(t, n - 1)
        return float(2 * stats.norm.pdf(effect) * ratio)

    return float(integrate.quad(weighted, 0, 12, limit=200)[0])


@pytest.mark.parametrize(
    "values",
    [
        [0.05, 0.01],
        [0.02, -0.01, 0.03, 0.01],
        [-0.02, 0.01, -0.03, -0.01, 0.0],
        [0.03, 0.04, 0.05, 0.02, 0.03, 0.06, 0.01, 0.04],
    ],
)
def test_the_closed_form_is_the_integral(values: list[float]) -> None:
    assert math.exp(compute_safe_t(values)) == pytest.approx(integrated_e(values), rel=1e-5)


def test_single_value_counts_by_its_sign() -> None:
    assert math.exp(compute_safe_t([0.3])) == pytest.approx(1.5)
    assert math.exp(compute_safe_t([-7.0])) == pytest.approx(0.5)


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0], [-1.0, 1.0]])
def test_zero_mean_is_not_evidence(values: list[float]) -> None:
    assert compute_safe_t(values) == pytest.approx(-0.5 * math.log(1 + len(values)))


def test_overwhelming_evidence_on_the_wrong_side_is_a_number() -> None:
    assert compute_safe_t([-1.0] * 300) < 0


@given(ratios, st.floats(1e-3, 1e3))
def test_evidence_has_no_unit(values: list[float], factor: float) -> None:
    assert compute_safe_t([factor * value for value in values]) == pytest.approx(
        compute_safe_t(values), rel=1e-6, abs=1e-6
    )


@given(ratios, st.floats(-0.2, 0.2))
def test_a_threshold_is_a_shift(values: list[float], above: float) -> None:
    shifted = [value - above for value in values]
    if max(map(abs, shifted)) > 1e-6:  # differences of equal numbers keep no digits
        assert compute_safe_t(values, above) == pytest.approx(compute_safe_t(shifted), rel=1e-5, abs=1e-5)


@given(ratios, st.floats(1e-3, 0.5))
def test_larger_values_are_more_evidence(values: list[float], more: float) -> None:
    assert compute_safe_t([value + more for value in values]) >= compute_safe_t(values) - 1e-6


def crossings(trials: int, length: int, alpha: float, mean: float, peek: bool) -> int:
    """Sequences of normal values in which a test for a mean above 0 says so at any time from the second value on."""
    draw = random.Random(1)
    crossed = 0
    for _ in range(trials):
        values: list[float] = []
        for _ in range(length):
            values.append(draw.gauss(mean, 1.0))
            n = len(values)
            if n < 2:
                continue
            if peek:
                t = sum(values) / n / float(stats.sem(values))
                certain = bool(t > stats.t.ppf(1 - alpha, n - 1))
            else:
                certain = compute_safe_t(values) >= -math.log(alpha)
            if certain:
                crossed += 1
                break
    return crossed


@pytest.mark.parametrize("mean", [0.0, -0.2])
def test_looking_after_every_value_does_not_raise_the_error_of_the_safe_t(mean: float) -> None:
    # 0.05 gives more than that number with a probability of 0.05; 0.08 would, with one above 0.99.
    assert crossings(1500, 40, 0.05, mean, peek=False) <= stats.binom.ppf(0.95, 1500, 0.05)


def test_looking_after_every_value_raises_the_error_of_a_t_test() -> None:
    # The near miss: the same sequences, the test that is made for one look.
    assert crossings(100, 40, 0.05, 0.0, peek=True) > stats.binom.ppf(0.999, 100, 0.05)


def test_a_mean_of_two_deviations_is_found_soon() -> None:
    assert crossings(100, 21, 0.001, 2.0, peek=False) >= stats.binom.ppf(0.001, 100, 0.95)


@given(ratios, st.sampled_from([0.05, 0.01, 0.001]))
def test_the_safe_interval_ends_where_the_evidence_of_both_sides_reaches_its_bound(
    values: list[float], alpha: float
) -> None:
    low, high = compute_safe_interval(values, alpha)
    if math.isinf(low) or high - low < 1e-6:
        return
    for bound in (low, high):
        greater = math.exp(compute_safe_t(values, bound))
        less = math.exp(compute_safe_t([-value for value in values], -bound))
        assert (greater + less) / 2 == pytest.approx(1 / (2 * alpha), rel=1e-6)


def test_few_values_bound_nothing() -> None:
    assert compute_safe_interval([], 0.05) == compute_safe_interval([0.1], 0.05) == (-math.inf, math.inf)
    assert compute_safe_interval([0.1, 0.2], 0.001) == (-math.inf, math.inf)
    assert math.isfinite(compute_safe_interval([0.1, 0.2] * 6, 0.001)[0])


def test_the_bound_of_pairs_is_students_where_nothing_was_assumed() -> None:
    # As with one degree of freedom more than there are, which is the prior's, of a deviation of 0.
    values = [0.1, 0.3, 0.2, 0.4]
    student = float(stats.t.ppf(0.999, 3 + PRIOR_DEGREES))
    deviation = math.sqrt(np.var(values, ddof=1) * 3 / (3 + PRIOR_DEGREES))
    assert compute_pairs_bound(values, 0.0, 0.001) == pytest.approx(0.25 - student * deviation / 2)


def test_pairs_that_agree_by_chance_are_off_by_what_was_assumed() -> None:
    student = float(stats.t.ppf(0.999, 2 + PRIOR_DEGREES))
    deviation = 0.02 * math.sqrt(PRIOR_DEGREES / (2 + PRIOR_DEGREES))
    assert compute_pairs_bound([0.1] * 3, 0.02, 0.001) == pytest.approx(0.1 - student * deviation / math.sqrt(3))
    with pytest.raises(ValueError, match="no process pairs"):
        compute_pairs_bound([], 0.02, 0.001)


@pytest.mark.parametrize("pairs", [3, 6])
@pytest.mark.parametrize("true", [0.02, 0.01])
def test_the_bound_of_pairs_is_seldom_above_their_mean_where_they_differ_as_assumed(pairs: int, true: float) -> None:
    draw = np.random.default_rng(0)
    above = sum(compute_pairs_bound(list(draw.normal(0.0, true, pairs)), 0.02, 0.01) > 0 for _ in range(4000))
    assert above <= stats.binom.ppf(0.999, 4000, 0.01)
