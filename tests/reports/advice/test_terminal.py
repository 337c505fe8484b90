from __future__ import annotations

import io
import os
import pty

import pytest

from frx_graph.reports.advice.terminal import PIPED_WIDTH, Terminal, detect_terminal


def test_pipe_is_plain():
    assert detect_terminal(io.StringIO(), {"TERM": "xterm"}) == Terminal(PIPED_WIDTH, color=False)


@pytest.mark.parametrize(
    ("environ", "color"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_terminal_has_colour_unless_told_otherwise(environ, color):
    main, replica = pty.openpty()
    try:
        with os.fdopen(replica, "w") as stream:
            found = detect_terminal(stream, environ)
    finally:
        os.close(main)
    assert found.color is color
    assert 60 <= found.width <= 120


def test_closed_size_query_falls_back(monkeypatch):
    class Odd(io.StringIO):
        def isatty(self):
            return True

        def fileno(self):
            raise OSError("no descriptor")

    assert detect_terminal(Odd(), {}) == Terminal(PIPED_WIDTH, color=True)
