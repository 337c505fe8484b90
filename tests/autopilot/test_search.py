"""What the autopilot asks for, tries, and records: with stand-ins for the processes that it starts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pretended_search import HERE, PretendedSearch

from frx_graph.compiler.plans import ALL_REWRITES, make_recorded_plan
from frx_graph.errors import LedgerRefusedError, TrialError
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.records import Candidate

OFF, EAGER = (Candidate("inner_choice", "", (), (name,)) for name in ("layout_optimization_off", "eager"))
HOIST = Candidate("hoist_copy", "a" * 16, ("clone",))
LAYOUT = Candidate("propagate_layout", "a" * 16, ("conv",), ("0,2,3,1",), 2e-3)
PRODUCTS = Candidate("onednn_products", "a" * 16, ("addmm",), ("dot",), 1e-4)


@pytest.fixture
def world() -> PretendedSearch:
    return PretendedSearch((HOIST, LAYOUT))


LAYOUTS = ("propagate_layout", "backward_layout")


def test_the_combination_is_used_only_where_it_is_the_fastest(world: PretendedSearch) -> None:
    world.ratios = {("hoist_copy",): 1.2, ("propagate_layout",): 1.3, ("hoist_copy", "propagate_layout"): 1.25}
    assert world.try_graph() == (LAYOUT,)
    # Each is recorded at once, and what is slower before the fastest.
    layout = ("propagate_layout",)
    assert world.promoted == [layout, ("hoist_copy",), layout, ("hoist_copy", "propagate_layout"), layout]
    assert world.recorded[-4].reason == ("once more, so that it is active: the fastest plan promoted so far, 1.300")


def test_nothing_is_promoted_after_a_decision_was_refused(world: PretendedSearch) -> None:
    world.ratios = {("hoist_copy",): 1.2, ("propagate_layout",): 1.3, ("hoist_copy", "propagate_layout"): 1.25}

    def record(decisions: Sequence[Decision]) -> None:
        if "once more" in decisions[-1].reason:
            raise LedgerRefusedError("it was rolled back")
        world.recorded.extend(decisions)

    with pytest.raises(LedgerRefusedError, match="rolled back"):
        world.try_graph(record=record)
    assert world.tried == [("propagate_layout",), ("hoist_copy",)]
    assert world.promoted == [("propagate_layout",)]
    # Nor has the search come to its end.
    assert {one.candidates for one in world.recorded} == {(LAYOUT,)}


def test_known_proposals_are_not_requested_again(world: PretendedSearch) -> None:
    world.ratios = {("hoist_copy",): 1.2, ("propagate_layout",): 1.3, ("hoist_copy", "propagate_layout"): 1.5}
    assert world.try_graph() == (HOIST, LAYOUT)
    # Hoisting comes first, and both together are all.
    assert world.asked == [ALL_REWRITES, LAYOUTS]
    assert world.tried == [("propagate_layout",), ("hoist_copy",), ("hoist_copy", "propagate_layout")]


def test_some_of_them_together_are_asked_for(world: PretendedSearch) -> None:
    world.proposals = (HOIST, LAYOUT, PRODUCTS)
    world.ratios = {
        ("hoist_copy",): 0.9,
        ("propagate_layout",): 1.3,
        ("onednn_products",): 1.2,
        ("propagate_layout", "onednn_products"): 1.4,
    }
    assert world.try_graph() == (LAYOUT, PRODUCTS)
    assert world.asked == [ALL_REWRITES, LAYOUTS, ("onednn_products",), (*LAYOUTS, "onednn_products")]
    assert [one.kind for one in world.recorded if one.candidates == (HOIST,)] == [
        Kind.PROPOSED,
        Kind.TRIED,
        Kind.REJECTED,
    ]


def test_other_ways_to_compile_are_tried_behind_what_is_predicted(world: PretendedSearch) -> None:
    world.choices = (OFF, EAGER)
    world.ratios = {
        ("propagate_layout",): 1.1,
        ("layout_optimization_off",): 1.2,
        ("eager",): 1.4,
        ("hoist_copy",): 1.2,
        ("hoist_copy", "propagate_layout"): 1.3,
    }
    assert world.try_graph() == (EAGER,)
    assert world.tried == [*list(world.ratios)]


def test_rewrites_are_made_under_another_compiler_and_not_with_other_options_of_inductors(
    world: PretendedSearch,
) -> None:
    world.choices, world.under_eager = (OFF, EAGER), (PRODUCTS,)
    world.proposals = ()
    world.ratios = {("layout_optimization_off",): 1.2, ("eager", "onednn_products"): 1.4}
    assert world.try_graph() == (EAGER, PRODUCTS)
    assert world.asked == [ALL_REWRITES, ALL_REWRITES]
    reasons = {one.reason for one in world.recorded if one.kind is Kind.PROPOSED and one.candidates}
    assert reasons == {"only a trial can tell which inner compiler is fastest"}


def test_a_way_to_compile_is_not_tried_together_with_rewrites(world: PretendedSearch) -> None:
    world.choices = (OFF,)
    world.proposals = (LAYOUT,)
    world.ratios = {("propagate_layout",): 1.1, ("layout_optimization_off",): 1.2}
    assert world.try_graph() == (OFF,)
    assert world.promoted == [("propagate_layout",), ("inner_choice",)]


def test_proven_plan_stays_if_a_later_trial_fails(world: PretendedSearch) -> None:
    world.ratios = {("propagate_layout",): 1.3}
    world.fails = ("hoist_copy",)
    with pytest.raises(TrialError, match="the baseline does not run"):
        world.try_graph()
    assert world.promoted == [("propagate_layout",)]


def test_rejected_plan_is_not_tried_again(world: PretendedSearch) -> None:
    world.ratios = {("propagate_layout",): 1.3, ("hoist_copy",): 1.1}
    together = make_recorded_plan((HOIST, LAYOUT)).hash
    assert world.try_graph(rejected=frozenset({make_recorded_plan((LAYOUT,)).hash, together})) == (HOIST,)
    assert world.tried == [("hoist_copy",)]


def test_asking_takes_no_longer_than_the_budget(world: PretendedSearch) -> None:
    world.proposals = (HOIST, LAYOUT, PRODUCTS)
    world.ratios = {("propagate_layout",): 1.3, ("hoist_copy",): 1.1}
    world.slow = ("onednn_products",)
    assert world.try_graph() == (LAYOUT,)
    assert world.seconds == [100] * 3
    # With no time left the rest is not tried.
    assert world.tried == [("propagate_layout",)]


def test_a_budget_that_ends_before_anything_is_known_is_not_spent_again_at_once(world: PretendedSearch) -> None:
    world.slow = ALL_REWRITES
    assert world.try_graph() == ()
    assert [(one.kind, one.plan) for one in world.recorded] == [
        (kind, make_recorded_plan(()).hash) for kind in (Kind.PROPOSED, Kind.TRIED, Kind.INCONCLUSIVE)
    ]
    assert "budget" in world.recorded[-1].reason


def test_what_there_was_no_time_for_is_not_rejected_with_what_there_was(world: PretendedSearch) -> None:
    world.proposals = (HOIST, LAYOUT, PRODUCTS)
    world.ratios = {("propagate_layout",): 0.9}
    world.slow = ("onednn_products",)
    assert world.try_graph() == ()
    last = {one.plan: one.kind for one in world.recorded}
    assert last == {make_recorded_plan((LAYOUT,)).hash: Kind.REJECTED, make_recorded_plan(()).hash: Kind.INCONCLUSIVE}


def test_failing_program_raises_and_is_not_recorded(world: PretendedSearch) -> None:
    world.ratios = {("propagate_layout",): 1.3}
    world.fails = ("propagate_layout",)
    with pytest.raises(TrialError, match="does not run"):
        world.try_graph()
    assert world.recorded == []


def test_that_all_was_tried_is_a_decision(world: PretendedSearch) -> None:
    world.ratios = {("propagate_layout",): 0.9, ("hoist_copy",): 0.9}
    assert world.try_graph() == ()
    assert [(one.kind, one.plan, one.environment) for one in world.recorded[-3:]] == [
        (kind, make_recorded_plan(()).hash, HERE) for kind in (Kind.PROPOSED, Kind.TRIED, Kind.REJECTED)
    ]


def test_that_nothing_is_proposed_is_a_decision(world: PretendedSearch) -> None:
    world.proposals = ()
    assert world.try_graph() == ()
    assert [(one.kind, one.environment) for one in world.recorded] == [
        (kind, HERE) for kind in (Kind.PROPOSED, Kind.TRIED, Kind.REJECTED)
    ]
