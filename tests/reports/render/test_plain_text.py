from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.reports.render.plain_text import NAME_LIMIT, encodable, lines, one_line, path_end


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv1", "conv1"),
        ("größe × 日本", "größe × 日本"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("a\r\nb\tc\u2028d", "a b c d"),
        ("a\u202eb\u200bc\x00d\x9b", "abcd"),
        ("\udcff", ""),
        ("  a  ", "a"),
    ],
)
def test_one_line(text, shown):
    assert one_line(text) == shown


def test_long_names_are_cut_visibly():
    assert one_line("k" * 5000) == "k" * (NAME_LIMIT - 1) + "…"
    assert one_line("k" * NAME_LIMIT) == "k" * NAME_LIMIT


@given(st.text(st.characters(codec=None)))
def test_one_line_is_printable(text):
    shown = one_line(text)
    assert "\n" not in shown
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    encodable(text).encode("utf-8")


def test_lines_keep_indentation_and_nothing_else():
    assert lines("do:\n    x = 1\x1b[0m\r\n\ty\n\n") == ["do:", "    x = 1[0m", "    y", ""]


def test_of_a_long_path_the_end_is_shown() -> None:
    assert path_end("/a/report.csv", 20) == "/a/report.csv"
    assert path_end("/" + "x" * 300 + "/report.csv", 15) == "…xxx/report.csv"
    assert path_end("/\x1b[31m\n" + "x" * 300, 10) == "…" + "x" * 9
