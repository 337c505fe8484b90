"""Severity by share of the step, and the saving in percent of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.passes.severity import HIGH_SHARE, MEDIUM_SHARE, predicted_saving, severity_of, severity_of_share
from frx_graph.records import Saving, Severity

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
    assert severity_of_share(share) is severity


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_waste_is_never_less_severe(one: float, other: float) -> None:
    less, more = sorted([one, other])
    assert ASCENDING.index(severity_of_share(less)) <= ASCENDING.index(severity_of_share(more))


@given(amounts, st.integers(1, 10**15))
def test_bytes_are_judged_by_their_share(wasted: int, step: int) -> None:
    assert severity_of(wasted, step) is severity_of_share(wasted / step)


@pytest.mark.parametrize(("wasted", "step"), [(None, 100), (50, 0), (50, -1)])
def test_what_is_unknown_is_not_severe(wasted: int | None, step: int) -> None:
    assert severity_of(wasted, step) is Severity.INFO


@given(amounts, amounts, st.integers(1, 10**15))
def test_a_saving_is_a_range_within_the_step(one: int, other: int, step: int) -> None:
    least, most = sorted([one, other])
    saving = predicted_saving(least, most, step)
    assert saving.predicted_pct_min is not None
    assert saving.predicted_pct_max is not None
    assert 0 <= saving.predicted_pct_min <= saving.predicted_pct_max <= 100


def test_the_saving_of_an_unknown_step_is_unknown() -> None:
    assert predicted_saving(1, 2, 0) == Saving()
    assert predicted_saving(1, 2, 200) == Saving(predicted_pct_min=0.5, predicted_pct_max=1.0)
