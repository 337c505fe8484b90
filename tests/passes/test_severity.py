"""Severity by share of the step, and the saving in percent of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.capture.call_site import CallSite
from frx_graph.passes.severity import (
    HIGH_SHARE,
    MEDIUM_SHARE,
    estimate_saving_pct,
    grade_bytes,
    grade_share,
    predict_saving,
    rank_findings,
)
from frx_graph.records import Effort, Finding, Risk, Saving, Severity

ASCENDING = [Severity.INFO, Severity.LOW, Severity.MEDIUM, Severity.HIGH]
amounts = st.integers(0, 10**15)


@pytest.mark.parametrize(
    ("share", "severity"),
    [
        (None, Severity.INFO),
        (0.0, Severity.INFO),
        (1e-9, Severity.LOW),
        (MEDIUM_SHARE, Severity.MEDIUM),
        (HIGH_SHARE, Severity.HIGH),
        (1.0, Severity.HIGH),
    ],
)
def test_each_threshold_belongs_to_what_is_above_it(share: float | None, severity: Severity) -> None:
    assert grade_share(share) is severity


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_waste_is_never_less_severe(one: float, other: float) -> None:
    less, more = sorted([one, other])
    assert ASCENDING.index(grade_share(less)) <= ASCENDING.index(grade_share(more))


@given(amounts, st.integers(1, 10**15))
def test_bytes_are_judged_by_their_share(wasted: int, step: int) -> None:
    assert grade_bytes(wasted, step) is grade_share(wasted / step)


@pytest.mark.parametrize(("wasted", "step"), [(None, 100), (50, 0), (50, -1)])
def test_unknown_saving_is_not_severe(wasted: int | None, step: int) -> None:
    assert grade_bytes(wasted, step) is Severity.INFO


@given(amounts, amounts, st.integers(1, 10**15))
def test_a_saving_is_a_range_within_the_step(one: int, other: int, step: int) -> None:
    least, most = sorted([one, other])
    saving = predict_saving(least, most, step)
    assert saving.predicted_pct_min is not None
    assert saving.predicted_pct_max is not None
    assert 0 <= saving.predicted_pct_min <= saving.predicted_pct_max <= 100


def test_the_saving_of_an_unknown_step_is_unknown() -> None:
    assert predict_saving(1, 2, 0) == Saving()
    assert predict_saving(1, 2, 200) == Saving(predicted_pct_min=0.5, predicted_pct_max=1.0)


def finding(
    severity: Severity = Severity.LOW, saving: Saving | None = None, confidence: float = 0.5, line: int = 1
) -> Finding:
    return Finding(
        rule="FRX002",
        title="t",
        severity=severity,
        site=CallSite("/net.py", line, "forward"),
        nodes=(),
        count_per_step=1,
        bytes_per_step=None,
        saving=saving or Saving(),
        effort=Effort.LOCAL,
        risk=Risk.LOW,
        fix="f",
        confidence=confidence,
    )


@pytest.mark.parametrize(
    ("saving", "confidence", "expected"),
    [
        (Saving(predicted_pct_min=2.0, predicted_pct_max=6.0), 0.5, 2.0),
        (Saving(predicted_pct_min=0.0, predicted_pct_max=0.0), 0.95, 0.0),
        (Saving(predicted_pct_min=2.0, predicted_pct_max=6.0, measured_pct=3.0), 0.5, 3.0),
        (Saving(), 0.95, 0.0),
    ],
)
def test_the_expected_saving(saving: Saving, confidence: float, expected: float) -> None:
    assert estimate_saving_pct(finding(saving=saving, confidence=confidence)) == expected


def test_certain_saving_ranks_before_a_larger_uncertain_one() -> None:
    sure = finding(saving=Saving(predicted_pct_min=8.0, predicted_pct_max=8.0), confidence=0.95, line=2)
    doubtful = finding(saving=Saving(predicted_pct_min=0.0, predicted_pct_max=12.0), confidence=0.5, line=1)
    assert rank_findings([doubtful, sure]) == (sure, doubtful)


def test_severity_comes_first_and_the_order_does_not_depend_on_the_input() -> None:
    high = finding(Severity.HIGH, line=9)
    medium = finding(Severity.MEDIUM, Saving(predicted_pct_min=9.0, predicted_pct_max=9.0))
    ordered = (high, medium, *(finding(Severity.INFO, line=line) for line in range(1, 5)))
    shuffled = list(ordered)
    random.Random(3).shuffle(shuffled)
    assert rank_findings(shuffled) == ordered


def test_bytes_decide_between_findings_of_which_no_share_is_known() -> None:
    small, large = replace(finding(line=1), bytes_per_step=10), replace(finding(line=2), bytes_per_step=20)
    assert rank_findings([small, large]) == (large, small)
