"""Blocks, and the log ratio of the quads that they make up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.trials.samples import Block, Cause, Disturbance, MeasuredQuad
from frx_graph.trials.schedule import ABBA, BAAB, Arm, Quad

times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=6).map(tuple)
four_times = st.tuples(times, times, times, times)
FourTimes = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...], tuple[float, ...]]


def quad_of(
    seconds: FourTimes, arms: tuple[Arm, Arm, Arm, Arm] = ABBA, disturbance: Disturbance | None = None
) -> MeasuredQuad:
    first, second, third, fourth = zip(arms, seconds, strict=True)
    blocks = Block(*first), Block(*second, disturbance), Block(*third), Block(*fourth)
    return MeasuredQuad(Quad(0, 0, arms), blocks)


def test_a_log_ratio_is_of_block_medians() -> None:
    # One step of the first block is slow: its median is still 4 s. Geometric means: baseline 4, candidate 2.
    measured = quad_of(((4.0, 4.0, 99.0), (1.0,), (4.0,), (2.0, 8.0, 4.0)))
    assert measured.log_ratio == pytest.approx(math.log(4 / 2))
    assert not measured.void


@given(four_times)
def test_swapping_the_arms_negates(seconds: FourTimes) -> None:
    assert quad_of(seconds, ABBA).log_ratio == -quad_of(seconds, BAAB).log_ratio


@given(four_times, st.floats(1e-3, 1e3))
def test_the_unit_of_time_changes_nothing(seconds: FourTimes, factor: float) -> None:
    first, second, third, fourth = (tuple(factor * second for second in block) for block in seconds)
    scaled = quad_of((first, second, third, fourth))
    assert scaled.log_ratio == pytest.approx(quad_of(seconds).log_ratio, abs=1e-9)


@given(st.floats(0.1, 10), st.floats(-0.02, 0.02))
def test_a_drift_by_the_same_factor_from_block_to_block_cancels_out(ratio: float, drift: float) -> None:
    factors = [math.exp(drift * place) for place in range(4)]
    seconds = (ratio * factors[0],), (factors[1],), (factors[2],), (ratio * factors[3],)
    assert quad_of(seconds).log_ratio == pytest.approx(math.log(ratio), abs=1e-12)


def test_one_disturbed_block_makes_a_quad_void() -> None:
    disturbance = Disturbance(Cause.RECOMPILED, "step 3 compiled graph 2 again")
    measured = quad_of(((1.0,), (1.0,), (1.0,), (1.0,)), disturbance=disturbance)
    assert measured.void
    assert measured.blocks[1].disturbance == disturbance


@pytest.mark.parametrize("seconds", [(), (0.0,), (1.0, -1.0), (math.inf,), (math.nan,)])
def test_times_that_cannot_be(seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="a block of baseline with step times of"):
        Block(Arm.BASELINE, seconds)


def test_blocks_of_another_order_than_planned() -> None:
    blocks = quad_of(((1.0,), (1.0,), (1.0,), (1.0,)), BAAB).blocks
    with pytest.raises(ValueError, match=r"blocks of \['candidate', 'baseline', 'baseline', 'candidate'\] for Quad"):
        MeasuredQuad(Quad(0, 0, ABBA), blocks)
