from __future__ import annotations

import pytest

from frx_graph.errors import OptionError
from frx_graph.records import Refusal
from frx_graph.reports.advice.selection import RuleSelection, apply_selection, hide_findings, parse_selection
from frx_graph.reports.advice.wording import Outcome, classify_outcome

KNOWN = {"FRX001": "hidden_copy", "FRX002": "contiguous_churn", "FRX007": "weight_reconversion", "FRX010": "opaque"}


@pytest.mark.parametrize(
    ("select", "ignore", "shown"),
    [
        ([], [], ["FRX001", "FRX002", "FRX007", "FRX010"]),
        (["FRX001"], [], ["FRX001"]),
        (["frx001, FRX010"], [], ["FRX001", "FRX010"]),
        (["FRX00"], ["FRX002"], ["FRX001", "FRX007"]),
        ([], ["FRX0"], []),
        (["FRX010"], ["FRX01"], ["FRX010"]),
        (["FRX001"], ["FRX001"], []),
        (["hidden_copy"], [], ["FRX001"]),
        (["Opaque, FRX001"], [], ["FRX001", "FRX010"]),
        ([], ["contiguous_churn"], ["FRX001", "FRX007", "FRX010"]),
        (["FRX"], ["FRX007"], ["FRX001", "FRX002", "FRX010"]),
    ],
)
def test_longest_prefix_decides(advice, select, ignore, shown):
    kept = apply_selection(advice, parse_selection(select, ignore, KNOWN))
    assert [finding.rule for finding in kept.findings] == shown


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("FR001", "did you mean FRX001 (hidden_copy)?"),
        ("hidden_copies", "did you mean FRX001 (hidden_copy)?"),
        ("E501", "`frx rules` lists them"),
        ("", "`frx rules` lists them"),
        ("FRX001,", "`frx rules` lists them"),
        ("hidden", "did you mean FRX001 (hidden_copy)?"),
        ("FRX0011", "did you mean FRX001 (hidden_copy)?"),
    ],
)
def test_unknown_code_names_the_nearest(given, hint):
    with pytest.raises(OptionError) as error:
        parse_selection([given], [], KNOWN)
    assert error.value.hint == hint
    assert error.value.message.startswith("--select: ")
    with pytest.raises(OptionError, match="--ignore"):
        parse_selection([], [given], KNOWN)


def test_left_out_findings_are_reported(advice):
    less = apply_selection(advice, RuleSelection(ignore=("FRX010",)))
    assert less.refusals[-1].subject == "1 finding"
    assert "--ignore" in less.refusals[-1].reason
    assert apply_selection(advice, RuleSelection()) is advice


def test_hidden_findings_are_counted(advice):
    less = hide_findings(advice, [0, 2], "why")
    assert [finding.rule for finding in less.findings] == ["FRX002", "FRX010"]
    assert less.refusals == (*advice.refusals, Refusal("2 findings", "why"))
    assert less.totals.quick_wins == 0
    assert less.totals.copies_per_step == advice.totals.copies_per_step
    assert less.copies == advice.copies


def test_hiding_all_is_not_clean(advice):
    assert classify_outcome(hide_findings(advice, range(4), "why")) is Outcome.PARTIAL


def test_hiding_nothing_changes_nothing(advice):
    assert hide_findings(advice, (), "why") is advice
