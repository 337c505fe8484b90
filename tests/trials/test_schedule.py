"""The order in which arms run."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.protocol import Protocol, make_protocol
from frx_graph.trials.schedule import ABBA, BAAB, Arm, make_schedule, select_next_quad

protocols = st.builds(
    lambda pairs, quads, seed: replace(
        make_protocol(TrialPolicy()), process_pairs=pairs, quads_per_pair=quads, seed=seed
    ),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 2**32),
)


@pytest.mark.parametrize("arms", [ABBA, BAAB])
def test_a_quad_cancels_what_drifts_evenly(arms: tuple[Arm, ...]) -> None:
    place = {arm: [number for number, other in enumerate(arms) if other is arm] for arm in Arm}
    assert sum(place[Arm.BASELINE]) == sum(place[Arm.CANDIDATE]) == 3
    assert len(place[Arm.BASELINE]) == len(place[Arm.CANDIDATE]) == 2


@given(protocols)
def test_pairs_come_one_after_the_other_and_orders_alternate_within_each(rule: Protocol) -> None:
    plan = make_schedule(rule)
    numbers = [(pair, number) for pair in range(rule.process_pairs) for number in range(rule.quads_per_pair)]
    assert [(quad.pair, quad.number) for quad in plan] == numbers
    for one, other in itertools.pairwise(plan):
        assert one.pair != other.pair or {one.arms, other.arms} == {ABBA, BAAB}


@given(protocols)
def test_neither_order_is_favoured(rule: Protocol) -> None:
    plan = make_schedule(rule)
    everywhere = Counter(quad.arms for quad in plan)
    first = Counter(quad.arms for quad in plan if quad.number == 0)
    assert abs(everywhere[ABBA] - everywhere[BAAB]) <= 1
    assert abs(first[ABBA] - first[BAAB]) <= 1


@given(protocols)
def test_a_seed_has_one_order(rule: Protocol) -> None:
    assert make_schedule(rule) == make_schedule(rule)


def test_seeds_have_different_orders() -> None:
    rule = make_protocol(TrialPolicy())
    starts = {
        tuple(quad.arms for quad in make_schedule(replace(rule, seed=seed)) if quad.number == 0) for seed in range(50)
    }
    assert len(starts) > 10  # of the 20 in which one arm begins three of five pairs, or two


@given(protocols, st.integers(1, 6))
def test_added_pairs_follow_the_others_in_balanced_order(rule: Protocol, added: int) -> None:
    extended = replace(rule, extra_pairs=added).extend()
    assert extended is not None
    plan = make_schedule(extended)
    before = make_schedule(rule)
    assert plan[: len(before)] == before
    rest = plan[len(before) :]
    assert sorted({quad.pair for quad in rest}) == list(range(rule.process_pairs, rule.process_pairs + added))
    orders = Counter(quad.arms for quad in rest)
    assert abs(orders[ABBA] - orders[BAAB]) <= 1


def test_the_first_quad_that_is_not_done_is_next() -> None:
    plan = make_schedule(make_protocol(TrialPolicy()))
    assert select_next_quad(plan, []) == plan[0]
    assert select_next_quad(plan, plan[:1]) == plan[1]
    # One of before may turn out to be void.
    assert select_next_quad(plan, (*plan[:3], *plan[4:8])) == plan[3]
    assert select_next_quad(plan, plan[:-1]) == plan[-1]
    assert select_next_quad(plan, plan) is None
