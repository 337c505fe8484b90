from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.support.plain_text import NAME_LIMIT, clean_line, escape_surrogates


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
    assert clean_line(text) == shown


def test_long_names_are_cut_visibly():
    assert clean_line("k" * 5000) == "k" * (NAME_LIMIT - 1) + "…"
    assert clean_line("k" * NAME_LIMIT) == "k" * NAME_LIMIT


@given(st.text(st.characters(codec=None)))
def test_one_line_is_printable(text):
    shown = clean_line(text)
    assert "\n" not in shown
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    escape_surrogates(text).encode("utf-8")
