"""Lines about what frx does reach the user once, and never end the program."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from frx_graph.support.user_log import StandardErrorHandler, show_log, write_line

LOGGER = logging.getLogger("frx_graph")
CHILD = logging.getLogger("frx_graph.autopilot.a_test")


class Collecting(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Failing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("the log's server is gone")


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Logging as in a new program."""
    root = logging.getLogger()
    before = root.handlers[:], LOGGER.handlers[:], LOGGER.level
    root.handlers, LOGGER.handlers = [], []
    LOGGER.setLevel(logging.NOTSET)
    monkeypatch.delenv("FRX_LOG", raising=False)
    yield
    root.handlers, LOGGER.handlers = before[:2]
    LOGGER.setLevel(before[2])


def write_both() -> None:
    write_line(CHILD, logging.INFO, "tried")
    write_line(CHILD, logging.DEBUG, "a stage")


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        (None, "frx: tried\n"),
        ("info", "frx: tried\n"),
        (" DEBUG", "frx: tried\nfrx: a stage\n"),
        ("off", ""),
        ("", "frx: tried\n"),
        ("loud", "frx: FRX_LOG is 'loud', not one of off, info, debug: ignored\nfrx: tried\n"),
    ],
)
def test_the_variable_sets_the_level(
    level: str | None, lines: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if level is not None:
        monkeypatch.setenv("FRX_LOG", level)
    show_log()
    show_log()
    write_both()
    assert capsys.readouterr() == ("", lines)


def test_a_level_that_the_program_has_set_stays(capsys: pytest.CaptureFixture[str]) -> None:
    LOGGER.setLevel(logging.WARNING)
    show_log()
    write_both()
    assert capsys.readouterr().err == ""


def test_handlers_of_the_program_show_the_lines_instead(capsys: pytest.CaptureFixture[str]) -> None:
    show_log()
    own = Collecting()
    logging.getLogger().addHandler(own)
    write_both()
    assert (own.lines, capsys.readouterr().err) == (["tried"], "")


def test_nothing_is_shown_before_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    write_both()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("stream", [None, io.StringIO()], ids=["none", "closed"])
def test_a_missing_standard_error_does_not_end_the_program(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    show_log()
    write_both()
    assert any(isinstance(handler, StandardErrorHandler) for handler in LOGGER.handlers)


def test_a_failing_handler_does_not_end_the_program() -> None:
    show_log()
    LOGGER.addHandler(Failing())
    write_both()


def test_a_line_is_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_log()
    write_line(CHILD, logging.INFO, "an error\n\x1b[31m of the %s program")
    assert capsys.readouterr().err == "frx: an error [31m of the %s program\n"
