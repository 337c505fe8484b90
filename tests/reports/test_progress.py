from __future__ import annotations

import io
import sys

import pytest

from frx_graph.reports.progress import show_stages


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal_in_place(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error from here on; pytest sets its own at the beginning of a test, so no fixture can do it."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


@pytest.mark.parametrize("name", ["x[/bold]y/m.py:kw", "a[/x].json", "[red]m.py:f", "[@click=f()]m.py"])
def test_brackets_in_a_stage_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    terminal = terminal_in_place(monkeypatch)
    with show_stages() as progress:
        progress(f"loading {name}")
    assert f"loading {name}" in terminal.getvalue()


def test_an_escape_in_a_stage_does_not_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_in_place(monkeypatch)
    with show_stages() as progress:
        progress("loading \x1b]0;planted\x07m.py:f")
    assert "loading ]0;plantedm.py:f" in terminal.getvalue()


def test_brackets_printed_by_a_model_are_not_styles(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_in_place(monkeypatch)
    with show_stages():
        print("[/bold]", end="", file=sys.stderr, flush=True)
    assert "[/bold]" in terminal.getvalue()


def test_nothing_is_shown_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with show_stages() as progress:
        progress("loading")
    assert stream.getvalue() == ""
