from __future__ import annotations

from frx_graph.records import Refusal
from frx_graph.reports.advice.filtering import hide
from frx_graph.reports.advice.outcome import Outcome, outcome_of


def test_what_is_hidden_is_counted(advice):
    less = hide(advice, [0, 2], "why")
    assert [finding.rule for finding in less.findings] == ["FRX002", "FRX010"]
    assert less.refusals == (*advice.refusals, Refusal("2 findings", "why"))
    assert less.totals.quick_wins == 0
    assert less.totals.copies_per_step == advice.totals.copies_per_step
    assert less.copies == advice.copies


def test_hiding_all_is_not_clean(advice):
    assert outcome_of(hide(advice, range(4), "why")) is Outcome.PARTIAL


def test_hiding_nothing_changes_nothing(advice):
    assert hide(advice, (), "why") is advice
