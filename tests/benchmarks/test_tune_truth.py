from __future__ import annotations

import numpy as np
import pytest
import tune_truth

NOTHING_FOUND = {"found": {}, "claimed_gain": None, "claimed_low": None, "points_apart": None, "is_best": False}


def results(**changes):
    plant = {
        "found": {"A": "1"},
        "best": {"A": "2"},
        "claimed_gain": 1.02,
        "claimed_low": 0.9,
        "true_gain": 1.0,
        "true_low": 0.95,
        "true_high": 1.05,
        "points_apart": 2.0,
        "found_over_best": {"value": 1.01, "low": 0.97, "high": 1.05},
        "grid_ms": [{"variables": {"A": "1"}, "ms": 9.9}],
        "is_best": True,
        "seconds": 60.0,
    }
    noop = {"runs": 30, "promoted": 0, "verdicts": {"equivalent": 30}, "ratios": [], "seconds": 1.0}
    return {"planted": plant | changes.get("planted", {}), "noop": noop | changes.get("noop", {})}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, True),
        ({"planted": {"points_apart": 5.0}}, True),
        ({"planted": {"points_apart": 5.01}}, False),
        ({"planted": {"is_best": False}}, False),
        ({"planted": NOTHING_FOUND}, False),
        ({"noop": {"promoted": 1}}, False),
    ],
)
def test_what_has_to_hold(changes, wanted):
    assert tune_truth.holds(results(**changes)) is wanted
    assert "no-op promoted in" in tune_truth.table(results(**changes))


def test_plain_runs_take_turns(monkeypatch):
    asked = []
    monkeypatch.setattr(tune_truth, "plain_run", lambda variables: asked.append(variables["N"]) or len(asked))
    times = tune_truth.in_turns([{"N": "a"}, {"N": "b"}], 3)
    assert asked == ["a", "b", "b", "a", "a", "b"]
    assert times == [[1, 4, 5], [2, 3, 6]]


def test_every_planted_configuration_is_in_the_grid():
    grid = tune_truth.truth_grid()
    assert {"FRX_NUM_WORKERS": "0"} in grid
    assert {"FRX_NUM_WORKERS": "2", "FRX_CHANNELS_LAST": "true"} in grid


def test_a_ratio_is_of_what_ran_in_the_same_round():
    found = tune_truth.ratio([20.0, 40.0, 44.0], [10.0, 20.0, 20.0])
    assert found.value == pytest.approx((2 * 2 * 2.2) ** (1 / 3))
    assert found.low < 2 < found.high


def test_ratio_interval_covers_the_truth_at_its_nominal_rate():
    made = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        drift = made.normal(0, 0.2, 8)
        first, second = (list(np.exp(drift + made.normal(shift, 0.1, 8))) for shift in (np.log(2), 0.0))
        found = tune_truth.ratio(first, second)
        held += found.low <= 2 <= found.high
    assert 0.93 < held / 2000 < 0.97
