"""Processors that share a core, from files that the test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.measure.machine.processor_siblings import with_siblings


def test_siblings_are_found_and_others_not(tmp_path: Path) -> None:
    for number, text in enumerate(("0,4", "1,5", "2-3", "2-3", "0,4", "nonsense", "")):
        (tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}" / "topology" / "thread_siblings_list").write_text(f"{text}\n")
    assert with_siblings(frozenset({0}), tmp_path) == {0, 4}
    assert with_siblings(frozenset({0, 2}), tmp_path) == {0, 2, 3, 4}
    assert with_siblings(frozenset({5}), tmp_path) == {5}
    assert with_siblings(frozenset({6}), tmp_path) == {6}
    assert with_siblings(frozenset({9}), tmp_path) == {9}


@pytest.mark.parametrize("processors", [frozenset(), frozenset({0})])
def test_on_this_machine(processors: frozenset[int]) -> None:
    assert with_siblings(processors) >= processors
