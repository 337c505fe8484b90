from __future__ import annotations

from pathlib import Path

import pytest

from frx_graph.errors import LedgerError
from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import choose_location, parse_location


def test_the_command_line_counts_before_the_variable_before_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    named = {"option": "/o", "configured": "/c", "environ": {"FRX_LEDGER": "/e"}}
    assert choose_location(**named).file == Path("/o")
    assert choose_location(**{**named, "option": None}).file == Path("/e")
    assert choose_location(**{**named, "option": "", "environ": {"FRX_LEDGER": ""}}).file == Path("/c")
    default = choose_location(None, None, {})
    assert default.file == tmp_path / "frx-graph" / "ledger.sqlite3"
    assert not default.named
    assert choose_location(**named).named


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("a/b.db", Path.cwd() / "a/b.db"),
        ("/a b/ü%20?#.db", Path("/a b/ü%20?#.db")),
        ("~/l.db", Path.home() / "l.db"),
        ("sqlite:///a.db", Path.cwd() / "a.db"),
        ("sqlite:////a.db", Path("/a.db")),
        ("sqlite+pysqlite:////a.db", Path("/a.db")),
    ],
)
def test_paths_and_sqlite_urls(text, file):
    location = parse_location(text)
    assert location.file == file
    assert str(location) == str(file)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://ada:geheim@host:5432/decisions",
        "postgresql://ada:geheim@host/decisions?password=geheim",
        "mysql+foo://ada:geheim@host",
        "nosuch://ada:geheim@host",
        "http://ada:geheim@host:port/x",
        "://ada:geheim@host",
        "sqlite://ada:geheim@host/x",
    ],
)
def test_no_password_is_ever_shown(url):
    with pytest.raises(LedgerError) as error:
        open_to_read(parse_location(url))
    assert "geheim" not in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///a.db?mode=memory&uri=true", "no host and no options"),
        ("sqlite+aiosqlite:///a.db", r"cannot use sqlite\+aiosqlite"),
        ("a\0b", "NUL"),
        ("~nobody-of-that-name/x", "nobody-of-that-name"),
        ("nosuch://host/x", "does not support this database"),
    ],
)
def test_invalid_location_is_refused(text, message):
    with pytest.raises(LedgerError, match=message):
        open_to_read(parse_location(text))


def test_any_file_name_can_be_a_ledgers(tmp_path, decide):
    location = parse_location(str(tmp_path / "50% off?" / "a#b ü.db"))
    open_ledger(location).append([decide(Kind.PROPOSED)])
    assert open_to_read(location).count_events() == 1
    assert (tmp_path / "50% off?" / "a#b ü.db").is_file()
