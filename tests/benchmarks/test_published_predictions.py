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
TRIALS = "## Judged by trials"


@pytest.fixture(scope="module")
def fitted() -> tuple[Calibration, Accuracy]:
    rows = read_rows(ROOT / "benchmarks" / "results" / SHIPPED.results)
    points = [row.point for row in rows if row.machine == SHIPPED.machine and not row.ignored_load]
    return calibrate([point for point in points if point is not None])


def test_the_shipped_calibration_is_that_of_its_results(fitted):
    calibration, _ = fitted
    assert calibration.model_copy(update={"results": SHIPPED.results, "machine": SHIPPED.machine}) == SHIPPED


def assert_published(text: str, found: Accuracy) -> None:
    assert f"| candidates | {found.candidates} of {found.networks} networks |" in text
    assert f"| Spearman's rho | {found.rho:.3f} |" in text
    assert f"| {found.error:.3f} | 0.25 |" in text
    assert f"| mean relative error of the speed-up | {found.ratio_error:.3f} |" in text
    assert f"| within the 80 % interval | {found.coverage:.3f} |" in text
    for predicted in Gain:
        counts = (str(found.confusion.get((predicted, measured), 0)) for measured in Gain)
        assert f"| {predicted} | {' | '.join(counts)} |" in text


def test_the_published_figures_are_those_of_the_results(fitted):
    assert_published(TEXT[: TEXT.index(TRIALS)], fitted[1])


def test_the_figures_of_trials_are_those_of_the_shipped_calibration():
    rows = read_rows(ROOT / "benchmarks" / "results" / "predictions.jsonl")
    points = [row.point for row in rows if not row.ignored_load]
    found = judge(predict_all([point for point in points if point is not None], SHIPPED))
    assert_published(TEXT[TEXT.index(TRIALS) :], found)
