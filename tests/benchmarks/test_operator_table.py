import operator_table
import pytest
from operator_samples.observation import sample_calls

from frx_graph.rules.layout_operator import load_layout_operators


def test_rows_that_hold_are_counted_and_the_exit_status_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert operator_table.main(["--operator", "aten.cat", "--operator", "aten._softmax"]) == 0
    assert "of 2 rows that claim to hold here 0 are contradicted; of 0 others 0 hold too" in capsys.readouterr().out


def test_contradicted_rows_are_split_by_whether_they_claim_the_device() -> None:
    right = load_layout_operators()["aten.roll"]
    wrong = right.model_copy(update={"keeps": "any"})
    elsewhere = wrong.model_copy(update={"devices": frozenset({"cuda"})})
    unknown = right.model_copy(update={"operator": "aten.nothing"})
    found = list(operator_table.outcomes((right, wrong, elsewhere, unknown), sample_calls("cpu"), "cpu"))
    assert [outcome.claimed for outcome in found] == [True, True, False, True]
    assert [bool(outcome.contradictions) for outcome in found] == [False, True, True, True]
    assert found[3].contradictions[-1] == "channels-last was never tried"
