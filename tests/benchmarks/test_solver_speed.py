"""The graphs that the solver is timed on are what they are called, and its answers are judged."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
import solver_speed
from solver_speed import FORMS, main, measured, problem


@pytest.mark.parametrize("form", FORMS)
def test_values_are_read_later_in_the_graph(form: str) -> None:
    for operator in range(30):
        assert all(operator < reader < 30 for reader in FORMS[form](operator, 30))


def test_a_unet_pairs_its_halves() -> None:
    assert FORMS["unet"](3, 30) == [4, 26]
    assert FORMS["unet"](15, 30) == [16]


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_is_exact_and_cheaper_than_what_there_is(form: str) -> None:
    row = measured(form, 60, 3, rounds=2)
    assert len(row.seconds) == 2
    assert row.exact
    assert row.left < 1
    asked = problem(FORMS[form], 60, 3, Random(0))
    assert sum(len(value.readers) > 1 for value in asked.values) == (0 if form == "chain" else pytest.approx(15, abs=6))


def test_the_run_ends_with_its_results_and_fails_where_it_is_too_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(solver_speed, "BOUND_OPERATORS", 12)
    results = tmp_path / "solver.json"
    assert main(["--operators", "12", "--rounds", "1", "--json", str(results)]) == 0
    assert len(json.loads(results.read_text())["rows"]) == len(capsys.readouterr().out.splitlines()) == 6
    monkeypatch.setattr(solver_speed, "BOUND_S", 0.0)
    assert main(["--operators", "12", "--rounds", "1"]) == 1
    assert main(["--operators", "11", "--rounds", "1"]) == 0
