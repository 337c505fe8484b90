from __future__ import annotations

import pytest
import tune_truth


def results(**changes):
    plant = {
        "found": {"A": "1"}, "claimed_gain": 1.02, "true_gain": 1.0, "points_apart": 2.0, "default_ms": 20.0,
        "found_ms": 10.0, "best_ms": 9.9, "truth_ms": [{"variables": {"A": "1"}, "ms": 9.9}], "is_best": True,
        "seconds": 60.0,
    }  # fmt: skip
    noop = {"runs": 30, "promoted": 0, "verdicts": {"equivalent": 30}, "ratios": [], "seconds": 1.0}
    return {"planted": plant | changes.get("planted", {}), "noop": noop | changes.get("noop", {})}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, True),
        ({"planted": {"points_apart": 5.0}}, True),
        ({"planted": {"points_apart": 5.01}}, False),
        ({"planted": {"is_best": False}}, False),
        ({"planted": {"found": {}, "claimed_gain": None, "points_apart": None, "is_best": False}}, False),
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
