"""The fit of predicted to measured gains: scales, conformal widths, and figures of networks that were left out."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prediction_fit import (
    FEWEST_CANDIDATES,
    Point,
    calibrate,
    conformal_quantile,
    fit_scale,
    judge,
    leave_one_out,
    make_point,
    mean_relative_error,
    print_accuracy,
    weighted_median,
)

from frx_graph.rules.predicted_gain import Gain


def point(network: str, predicted: float, measured: float) -> Point:
    """With shares of a step."""
    return Point(network, predicted, 1.0, 1 / (1 - measured))


def made_up(networks: int, *, each: int = 6, noise: float = 0.1, scale: float = 1.5, seed: int = 0) -> list[Point]:
    drawn = random.Random(seed)
    points = []
    for network in range(networks):
        bias = drawn.gauss(0.0, noise / 2)
        for _ in range(each):
            predicted = drawn.uniform(0.01, 0.4)
            true = -scale * math.log1p(-predicted)
            measured = true + (0.03 + true) * (bias + drawn.gauss(0.0, noise))
            points.append(Point(f"network {network}", predicted, 1.0, math.exp(measured)))
    return points


def test_weighted_median():
    assert weighted_median([(1.0, 1.0), (2.0, 1.0), (9.0, 1.0)]) == 2.0
    assert weighted_median([(1.0, 5.0), (2.0, 1.0), (9.0, 1.0)]) == 1.0
    assert weighted_median([(3.0, 0.0)]) == weighted_median([]) == 1.0


def test_the_scale_ignores_outliers_and_is_not_negative():
    points = [point("a", 0.1, 0.19), point("b", 0.2, 0.36), point("c", 0.1, -3.0)]
    assert fit_scale(points) == pytest.approx(2.0)
    assert fit_scale([point("a", 0.1, -0.1)]) == 0.0


def test_a_quantile_over_networks():
    nine = {str(number): [float(number)] for number in range(1, 10)}
    # The eighth of nine, as one more counts as infinite.
    assert conformal_quantile(nine, 0.8) == 8.0
    assert conformal_quantile(nine, 0.9) == 9.0
    assert conformal_quantile(nine, 0.95) == math.inf
    assert conformal_quantile({}, 0.8) == math.inf


def test_networks_weigh_alike_whatever_their_candidates():
    many = {"large": [100.0] * 50, "a": [1.0], "b": [2.0], "c": [3.0], "d": [4.0]}
    assert conformal_quantile(many, 4 / 6) == 4.0
    assert conformal_quantile(many, 0.8) == 100.0


@given(st.lists(st.floats(0, 10), min_size=4, max_size=30), st.floats(0.1, 0.79))
def test_the_quantile_is_that_of_split_conformal_for_one_candidate_each(scores, coverage):
    rank = math.ceil(coverage * (len(scores) + 1) - 1e-9)
    by_network = {str(number): [score] for number, score in enumerate(scores)}
    expected = sorted(scores)[rank - 1] if rank <= len(scores) else math.inf
    assert conformal_quantile(by_network, coverage) == expected


def test_too_few_networks_make_an_interval_that_says_nothing():
    (_, gain), *_ = leave_one_out([point(network, 0.1, 0.2) for network in "abc"])
    assert gain.low < -1
    assert gain.high == pytest.approx(1.0)


def test_good_predictions_reach_the_goals():
    points = made_up(24)
    accuracy = judge(leave_one_out(points))
    assert accuracy.candidates >= FEWEST_CANDIDATES
    assert accuracy.coverage == pytest.approx(0.8, abs=0.08)
    assert accuracy.reached
    calibration, _ = calibrate(points)
    assert calibration.reached
    assert calibration.scale == pytest.approx(1.5, abs=0.15)


def test_coverage_holds_on_average_even_if_predictions_are_poor():
    found = [judge(leave_one_out(made_up(20, noise=1.0, seed=seed))) for seed in range(10)]
    assert sum(one.coverage or 0.0 for one in found) / len(found) == pytest.approx(0.8, abs=0.06)
    assert not any(one.reached for one in found)


def test_few_candidates_never_reach_the_goals():
    accuracy = judge(leave_one_out(made_up(9, noise=0.01)))
    assert accuracy.candidates < FEWEST_CANDIDATES
    assert not accuracy.reached
    assert not judge([]).reached


def test_confusion_table(capsys):
    accuracy = judge(leave_one_out([point(network, 0.2, 0.2) for network in "abcdef"]))
    assert accuracy.confusion == {(Gain.MUCH, Gain.MUCH): 6}
    print_accuracy(accuracy)
    assert "much                       0       0       6" in capsys.readouterr().out


def test_relative_errors_leave_out_what_gains_nothing():
    assert mean_relative_error([(0.2, 0.1), (0.05, 0.1), (0.5, 0.001)]) == pytest.approx(0.75)
    assert mean_relative_error([(0.5, 0.001)]) is None


def test_unknown_figures_make_no_point():
    assert make_point("a", None, 1.0, 1.1) is None
    assert make_point("a", 0.1, None, 1.1) is None
    assert make_point("a", 0.1, 1.0, None) is None
    assert make_point("a", 0.1, 1.0, 1.1) is not None
