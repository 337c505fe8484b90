"""What runs that took turns say of two programs."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.trials.program_times import Direction, ProgramComparison, compare_programs, make_program_schedule
from frx_graph.trials.samples import Block, MeasuredQuad
from frx_graph.trials.schedule import Arm


def compared(ratio: float, *, runs: int = 20, noise: float = 0.02, seed: int = 0) -> ProgramComparison:
    draw = random.Random(seed)
    quads = []
    for quad in make_program_schedule(runs):
        mean = {Arm.BASELINE: 0.01 * ratio, Arm.CANDIDATE: 0.01}
        blocks = [Block(arm, (mean[arm] * math.exp(draw.gauss(0, noise)),)) for arm in quad.arms]
        quads.append(MeasuredQuad(quad, (blocks[0], blocks[1], blocks[2], blocks[3])))
    return compare_programs(quads)


@pytest.mark.parametrize("runs", [4, 20, 50])
def test_both_run_as_often_and_both_orders_alternate(runs: int) -> None:
    plan = make_program_schedule(runs)
    assert Counter(arm for quad in plan for arm in quad.arms) == dict.fromkeys(Arm, runs)
    starts = [quad.arms[0] for quad in plan]
    assert all(one != other for one, other in itertools.pairwise(starts))
    assert plan == make_program_schedule(runs)


@pytest.mark.parametrize("runs", [0, 2, 5])
def test_numbers_of_runs_that_make_no_quads(runs: int) -> None:
    with pytest.raises(ValueError, match="runs of each"):
        make_program_schedule(runs)


def test_a_difference_has_its_direction() -> None:
    faster, slower = compared(1.2), compared(1 / 1.2)
    assert faster.direction is Direction.FASTER
    assert faster.ci_low < 1.2 < faster.ci_high
    assert slower.direction is Direction.SLOWER
    assert faster.speedup == pytest.approx(1.2, rel=0.03)
    assert len(faster.before_seconds) == len(faster.after_seconds) == 20
    assert statistics.median(faster.before_seconds) == pytest.approx(0.012, rel=0.03)


def test_equal_programs_rarely_show_a_difference() -> None:
    found = Counter(compared(1.0, seed=seed).direction for seed in range(300))
    assert found[Direction.NO_DIFFERENCE_SHOWN] >= 290


def test_noise_shows_nothing() -> None:
    assert compared(1.02, noise=0.3).direction is Direction.NO_DIFFERENCE_SHOWN


def test_times_without_noise_have_an_interval_without_width() -> None:
    found = compared(2.0, noise=0.0)
    assert found.ci_low == pytest.approx(2.0)
    assert found.ci_high == pytest.approx(2.0)
    assert found.direction is Direction.FASTER
    assert compared(1.0, noise=0.0).direction is Direction.NO_DIFFERENCE_SHOWN


@given(st.floats(1e-3, 1e3), st.integers(2, 12), st.floats(0, 3), st.integers(0, 1000))
def test_bounds_are_bounds(ratio: float, quads: int, noise: float, seed: int) -> None:
    found = compared(ratio, runs=2 * quads, noise=noise, seed=seed)
    assert 0 <= found.ci_low <= found.ci_high
    assert found.quads == quads
    assert found.speedup > 0
