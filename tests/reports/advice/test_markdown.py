from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.reports.advice.markdown import escape_html, escape_prose, format_code, format_code_block, render_markdown


@pytest.mark.parametrize("name", ["observed", "empty", "failed", "hostile"])
def test_golden(name, request, root, golden):
    golden(f"{name}.md", render_markdown(request.getfixturevalue(name), top=None, root=root))


def test_top(advice, root):
    text = render_markdown(advice, top=1, root=root)
    assert "FRX002" not in text
    assert "more places not shown." in text
    assert "FRX010" in render_markdown(advice, top=None, root=root)


def test_rows_have_the_columns_of_their_header(hostile, observed, root):
    for advice in (hostile, observed):
        rows = [line for line in render_markdown(advice, top=None, root=root).splitlines() if line.startswith("|")]
        widths = {len(re.findall(r"(?<!\\)\|", row)) - 1 for row in rows}
        assert widths == {6, 4}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b*c [x](y) `z` | ~ $", r"a\_b\*c \[x\](y) \`z\` \| \~ \$"),
        ("<img src=x> & @user", "&lt;img src=x&gt; &amp; &#64;user"),
        ("# head", r"\# head"),
        ("- item", r"\- item"),
        ("12. item", r"12\. item"),
        ("12.8 MB", "12.8 MB"),
    ],
)
def test_prose(text, shown):
    assert escape_prose(text) == shown


def test_code_spans_hold_any_backticks():
    assert format_code("a") == "`a`"
    assert format_code("a`b``c") == "```a`b``c```"
    assert format_code("`a") == "`` `a ``"
    assert format_code("a|b", in_table=True) == r"`a\|b`"
    assert format_code("\x1b\n") == ""


@given(st.text(alphabet="`a\n|<", max_size=20))
def test_nothing_closes_a_code_span_or_block(text):
    span = format_code(text)
    if span:
        fence = re.match(r"`+", span)[0]
        assert fence not in span[len(fence) : -len(fence)].strip("` ")
    block = format_code_block(text.split("\n")).splitlines()
    assert block[0] == f"{block[-1]}text"
    assert not any(line.strip().startswith(block[-1]) for line in block[1:-1])


def test_inside_tags_only_html_is_escaped():
    assert escape_html("f() <b> a_b @c") == "f() &lt;b&gt; a_b &#64;c"
