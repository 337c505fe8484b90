"""What step times say of two runs: equal programs are not told apart, clear changes are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.analyzers.run_change.step_times import StepVerdict, compare_step_times


def draw_steps(random: np.random.Generator, count: int, ms: float) -> list[float]:
    """Return steps with a slow drift, noise, and some that take twice as long."""
    drift = 1 + 0.02 * np.sin(np.linspace(0, 3, count) + random.uniform(0, 6))
    noise = 1 + 0.03 * random.standard_normal(count)
    return list(ms * drift * noise * np.where(random.random(count) < 0.03, 2, 1))


@pytest.mark.parametrize("count", [20, 200])
def test_equal_programs_are_not_told_apart(count: int) -> None:
    random = np.random.default_rng(1)
    found = [compare_step_times(draw_steps(random, count, 10), draw_steps(random, count, 10)) for _ in range(100)]
    verdicts = [one.verdict for one in found if one is not None]
    assert set(verdicts) <= {StepVerdict.SAME, StepVerdict.UNKNOWN}


@pytest.mark.parametrize(("ms", "verdict"), [(8.5, StepVerdict.FASTER), (11.8, StepVerdict.SLOWER)])
def test_a_clear_change_is_found(ms: float, verdict: StepVerdict) -> None:
    random = np.random.default_rng(2)
    for _ in range(20):
        change = compare_step_times(draw_steps(random, 100, 10), draw_steps(random, 100, ms))
        assert change is not None
        assert change.verdict is verdict
        assert change.low is not None
        assert change.high is not None
        assert change.low <= change.change <= change.high


def test_a_change_within_what_processes_differ_by_is_none() -> None:
    change = compare_step_times([10.0] * 50, [10.2] * 50)
    assert change is not None
    assert change.verdict is StepVerdict.SAME


def test_few_steps_tell_nothing() -> None:
    change = compare_step_times([10.0] * 7, [20.0] * 50)
    assert change is not None
    assert (change.low, change.high, change.verdict) == (None, None, StepVerdict.UNKNOWN)
    assert compare_step_times([], [1.0]) is None
    assert compare_step_times([0.0] * 9, [1.0] * 9) is None


@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=40), st.lists(st.floats(0.01, 1e4), min_size=1, max_size=40))
def test_a_swap_turns_the_verdict_around(before: list[float], after: list[float]) -> None:
    one, other = compare_step_times(before, after), compare_step_times(after, before)
    assert one is not None
    assert other is not None
    assert one.change == pytest.approx(1 / (1 + other.change) - 1)
    assert {one.verdict, other.verdict} not in ({StepVerdict.FASTER}, {StepVerdict.SLOWER})
