"""Damaged files are read or refused; and what fails is found, counted, and can be made again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fuzz_parsers
import pytest
from fuzz_parsers import example, fuzzed, seeds_of
from fuzzed_formats import PARSERS, Parser, Report

from frx_graph.errors import EvidenceError


@pytest.mark.usefixtures("program_froze_nothing")
@pytest.mark.parametrize("count", [20, pytest.param(5000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", PARSERS)
def test_damaged_files_are_read_or_refused(name: str, count: int) -> None:
    outcome = fuzzed(name, seeds_of(PARSERS[name], None), 0, count, (20.0, 600.0))
    assert outcome.failures == {}
    assert outcome.read + outcome.refused == outcome.examples == count
    # Damage that always is refused at once, or never noticed, tries nothing; twenty are too few to tell.
    assert count < 1000 or min(outcome.read, outcome.refused) > 20


def _planted(report: Callable[[Path], Report]) -> Parser:
    return replace(PARSERS["ptx"], report=report)


def _fails(path: Path) -> Report:
    if b"}" in path.read_bytes():
        raise KeyError("planted")
    raise EvidenceError(f"{path}: refused")


def _badly_said(path: Path) -> Report:
    raise EvidenceError(f"{path}: two\nlines")


def _hangs(_path: Path) -> Report:
    time.sleep(60)
    raise AssertionError


def _not_json(_path: Path) -> Report:
    return {"value": float("nan")}, str


@pytest.mark.integration
@pytest.mark.parametrize(
    ("report", "what"),
    [
        (_fails, "KeyError in "),
        (_badly_said, "badly said"),
        (_hangs, "longer than the limit"),
        (_not_json, "ValueError in "),
    ],
)
def test_failures_are_found(monkeypatch: pytest.MonkeyPatch, report: Callable[[Path], Report], what: str) -> None:
    monkeypatch.setattr(fuzz_parsers, "PARSERS", {"planted": _planted(report)})
    outcome = fuzzed("planted", [b"{ a }", b"b { }"], 3, 5, (0.3, 60.0))
    (found, numbers), *others = outcome.failures.items()
    assert found.startswith(what)
    assert outcome.examples == 5
    assert not others
    assert 0 < len(numbers) <= 5


def test_an_input_can_be_made_again() -> None:
    seeds = seeds_of(PARSERS["ncu"], None)
    inputs = [example(seeds, PARSERS["ncu"].words, 1, number) for number in range(20)]
    assert inputs == [example(seeds, PARSERS["ncu"].words, 1, number) for number in range(20)]
    assert len(set(inputs)) > 15
