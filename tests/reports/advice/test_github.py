from __future__ import annotations

import dataclasses
import re

import pytest

from frx_graph.reports.advice.github import render_github

COMMAND = re.compile(r"::(?P<level>error|warning|notice) (?P<properties>[^:]*)::(?P<message>.*)")


def _commands(text):
    """As the runner reads them: the properties end at the next `::`, their values hold no `,` and no `:`."""
    for line in text.splitlines():
        match = COMMAND.fullmatch(line)
        assert match is not None, line
        yield match["level"], dict(pair.split("=", 1) for pair in match["properties"].split(",")), match["message"]


@pytest.mark.parametrize("name", ["observed", "empty", "failed", "hostile"])
def test_golden(name, request, root, golden):
    golden(f"github_{name}.txt", render_github(request.getfixturevalue(name), root=root))


def test_each_finding_is_one_command(advice, root):
    first, second, third, fourth, summary = _commands(render_github(advice, root=root))
    assert first[0] == "warning"
    assert first[1] == {
        "file": "models/resnet.py",
        "line": "142",
        "title": "FRX001 convolution copies its input into a blocked format",
    }
    assert set(second[1]) == {"title"}
    assert "vision/attention.py:88" in second[2]
    assert (third[0], fourth[0]) == ("notice", "notice")
    assert set(fourth[1]) == {"title"}
    assert summary[1] == {"title": "frx-graph"}


def test_names_cannot_end_a_command_or_begin_one(hostile, root):
    commands = list(_commands(render_github(hostile, root=root)))
    assert [level for level, _, _ in commands] == ["warning", "notice"]
    assert "%3A%3Aerror%3A%3A%250A|`|%2C" in commands[0][1]["title"]
    assert "%0A::error::%250A" in commands[0][2]


def test_percent_is_escaped_before_line_breaks(advice, root):
    finding = dataclasses.replace(advice.findings[0], title="100%, x: y", fix="a\r\nb")
    text = render_github(dataclasses.replace(advice, findings=(finding,)), root=root)
    assert "title=FRX001 100%25%2C x%3A y::" in text
    assert "%0A%0Aa%0Ab%0A%0A" in text


def test_nothing_analysed_is_an_error(failed, empty, root):
    assert [level for level, _, _ in _commands(render_github(failed, root=root))] == ["error"]
    assert [level for level, _, _ in _commands(render_github(empty, root=root))] == ["notice"]
    partial = dataclasses.replace(empty, refusals=failed.refusals)
    assert [level for level, _, _ in _commands(render_github(partial, root=root))] == ["warning"]
