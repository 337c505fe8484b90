from __future__ import annotations

import pytest

from frx_graph.reports.render.marked_text import CodeBlock, Paragraph, Run, split_blocks, split_lines, split_runs


@pytest.mark.parametrize(
    ("line", "pieces"),
    [
        ("plain", [("plain", False)]),
        ("call `x.to()` once", [("call ", False), ("x.to()", True), (" once", False)]),
        ("`a``b`", [("a", True), ("b", True)]),
        ("one ` only", [("one ` only", False)]),
        ("", []),
    ],
)
def test_runs(line, pieces):
    assert [(run.text, run.code) for run in split_runs(line)] == pieces


def test_blocks():
    assert split_blocks("do `this`:\n    x = 1\n        y = 2\n\n  then that\x1b") == (
        Paragraph((Run("do ", False), Run("this", True), Run(":", False))),
        CodeBlock(("x = 1", "    y = 2")),
        Paragraph((Run("then that", False),)),
    )
    assert split_blocks("    x = 1") == (CodeBlock(("x = 1",)),)
    assert split_blocks("") == ()


def test_lines_keep_indentation_and_nothing_else():
    assert split_lines("do:\n    x = 1\x1b[0m\r\n\ty\n\n") == ["do:", "    x = 1[0m", "    y", ""]
