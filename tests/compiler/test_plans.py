"""Which rewrites a policy's highest risk allows, with and without isolation."""

from __future__ import annotations

from frx_graph.compiler.plans import _LOW_RISK, ALL_REWRITES, filter_by_risk, is_permitted
from frx_graph.passes.inner_choice import CHOICES
from frx_graph.records import Candidate, Risk

EVERYTHING = (*(choice.name for choice in CHOICES), *ALL_REWRITES)


def test_low_risk_leaves_out_what_changes_operators() -> None:
    assert set(filter_by_risk(EVERYTHING, Risk.LOW)) == _LOW_RISK < set(EVERYTHING)
    assert filter_by_risk(EVERYTHING, Risk.MEDIUM) == filter_by_risk(EVERYTHING, Risk.HIGH) == EVERYTHING


def test_what_is_tried_in_process_counts_as_one_tier_of_risk_higher() -> None:
    assert filter_by_risk(EVERYTHING, Risk.LOW, isolated=False) == ()
    assert set(filter_by_risk(EVERYTHING, Risk.MEDIUM, isolated=False)) == _LOW_RISK
    assert filter_by_risk(EVERYTHING, Risk.HIGH, isolated=False) == EVERYTHING


def test_a_plan_is_of_the_highest_risk_in_it() -> None:
    hoist, reuse = (Candidate(name, "a" * 16, ("clone",)) for name in ("hoist_copy", "reuse_memory"))
    eager, freezing = (Candidate("inner_choice", "", (), (name,)) for name in ("eager", "freezing"))
    assert all(is_permitted(Risk.LOW, plan) for plan in ((), (hoist,), (eager, hoist)))
    assert not any(is_permitted(Risk.LOW, plan) for plan in ((hoist, reuse), (freezing,), (eager, reuse)))
    assert is_permitted(Risk.MEDIUM, (freezing, reuse))
