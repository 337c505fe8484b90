"""The shipped calibration and the published figures of predictions are those of the results that they name."""

from __future__ import annotations

from pathlib import Path

import pytest
from prediction_accuracy import read_rows
from prediction_fit import Accuracy, calibrate, judge, predict_all

from frx_graph.rules.predicted_gain import Calibration, Gain, load_calibration

ROOT = Path(__file__).parent.parent.parent
SHIPPED = load_calibration()
TEXT = (ROOT / "docs" / "internals" / "predictions.md").read_text()


@pytest.fixture(scope="module")
def fitted() -> tuple[Calibration, Accuracy]:
    rows = read_rows(ROOT / "benchmarks" / "results" / SHIPPED.results)
    points = [row.point for row in rows if row.machine == SHIPPED.machine and not row.ignored_load]
    return calibrate([point for point in points if point is not None])


def test_the_shipped_calibration_is_that_of_its_results(fitted):
    calibration, _ = fitted
    assert calibration.model_copy(update={"results": SHIPPED.results, "machine": SHIPPED.machine}) == SHIPPED


def test_the_published_figures_are_those_of_the_results(fitted):
    calibration, accuracy = fitted
    assert f"| candidates | {accuracy.candidates} of {accuracy.networks} networks |" in TEXT
    assert f"| Spearman's rho | {calibration.rank_correlation:.3f} |" in TEXT
    assert f"| {calibration.mean_relative_error:.3f} | 0.25 |" in TEXT
    assert f"| mean relative error of the speed-up | {calibration.mean_ratio_error:.3f} |" in TEXT
    assert f"| within the 80 % interval | {calibration.coverage_elsewhere:.3f} |" in TEXT
    for predicted in Gain:
        counts = (str(accuracy.confusion.get((predicted, measured), 0)) for measured in Gain)
        assert f"| {predicted} | {' | '.join(counts)} |" in TEXT


def test_the_figures_of_trials_are_those_of_the_shipped_calibration():
    text = TEXT[TEXT.index("## Judged by trials") :]
    rows = read_rows(ROOT / "benchmarks" / "results" / "predictions.jsonl")
    points = [row.point for row in rows if not row.ignored_load]
    found = judge(predict_all([point for point in points if point is not None], SHIPPED))
    assert f"| candidates | {found.candidates} of {found.networks} networks |" in text
    assert f"| Spearman's rho | {found.rho:.3f} |" in text
    assert f"| {found.error:.3f} | 0.25 |" in text
    assert f"| mean relative error of the speed-up | {found.ratio_error:.3f} |" in text
    assert f"| within the 80 % interval | {found.coverage:.3f} |" in text
    for predicted in Gain:
        counts = (str(found.confusion.get((predicted, measured), 0)) for measured in Gain)
        assert f"| {predicted} | {' | '.join(counts)} |" in text
