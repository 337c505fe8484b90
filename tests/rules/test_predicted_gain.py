"""Intervals and classes of predicted gains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.rules.predicted_gain import (
    Calibration,
    Gain,
    classify_gain,
    compute_log_speedup,
    compute_share,
    load_calibration,
    predict_gain,
)

FITTED = Calibration(coverage=0.8, scale=2.0, width=0.5, networks=20, candidates=100, reached=True)
COARSE = FITTED.model_copy(update={"reached": False})


def test_the_logarithm_of_the_speedup_is_scaled():
    gain = predict_gain(0.2, 1.0, FITTED)
    assert gain is not None
    assert compute_log_speedup(gain.expected) == pytest.approx(2 * compute_log_speedup(0.2))


def test_unknown_predictions_have_no_gain():
    assert predict_gain(None, 1.0, FITTED) is None
    assert predict_gain(0.1, None, FITTED) is None
    assert predict_gain(0.1, 0.0, FITTED) is None


@given(st.floats(-10, 10), st.floats(1e-6, 10))
def test_an_interval_holds_its_middle_and_never_more_than_a_step(saved, run):
    gain = predict_gain(saved, run, FITTED)
    assert gain is not None
    assert gain.low <= gain.expected <= gain.high < 1.0


@given(st.floats(-5, 0.9))
def test_shares_and_logarithms_are_inverse(share):
    assert compute_share(compute_log_speedup(share)) == pytest.approx(share)


@pytest.mark.parametrize(
    ("share", "gain"), [(-0.5, Gain.NONE), (0.019, Gain.NONE), (0.02, Gain.SOME), (0.1, Gain.MUCH), (0.9, Gain.MUCH)]
)
def test_classes(share, gain):
    assert classify_gain(share) is gain


def test_a_percentage_is_shown_only_if_predictions_are_accurate():
    assert str(predict_gain(0.2, 1.0, FITTED)) == ("predicted to save 19 to 50 % of a step (80% interval)")
    assert str(predict_gain(0.2, 1.0, COARSE)) == "predicted gain: much"


def test_the_package_has_a_calibration():
    fitted = load_calibration()
    assert fitted.coverage == 0.8
    # Percentages need the goals of benchmarks/prediction_fit.py.
    assert not fitted.reached or fitted.candidates >= 60
