from __future__ import annotations

import io
import sys
import time

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


def test_without_a_terminal_the_stage_is_printed_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with show_stages(plain_seconds=0.02) as progress:
        progress("round 1 of 36\x1b[2J\nand more")
        until = time.monotonic() + 10
        while stream.getvalue().count("\n") < 2 and time.monotonic() < until:
            time.sleep(0.01)
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 2
    assert lines[-1] == "frx: round 1 of 36[2J and more (0 s so far)"
    # Nothing is printed after the end.
    time.sleep(0.1)
    assert stream.getvalue().splitlines() == lines


def test_nothing_is_printed_before_the_time_or_if_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with show_stages(plain_seconds=60.0) as progress:
        progress("loading")
    with show_stages(shown=False, plain_seconds=0.01) as progress:
        progress("loading")
        time.sleep(0.1)
    assert stream.getvalue() == ""


def test_nothing_is_shown_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with show_stages() as progress:
        progress("loading")
    assert stream.getvalue() == ""
