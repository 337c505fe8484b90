"""A ledger is made where it is missing, and nothing is made or changed where that cannot be."""

from __future__ import annotations

import sqlite3

import pytest

from frx_graph.errors import LedgerError, LedgerMissingError
from frx_graph.ledger.database import engine, opening
from frx_graph.ledger.database.engine import WRITING, Access, make_ledger_engine
from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.database.tables import read_tables_version
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.plain_file import TABLES_VERSION


def pragma(file, name):
    with sqlite3.connect(file) as connection:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_reading_makes_nothing(location):
    with pytest.raises(LedgerMissingError, match="there is no ledger at"):
        open_to_read(location)
    with pytest.raises(LedgerMissingError, match="there is no ledger at"):
        open_to_read(location)
    assert location.file is None or not location.file.parent.exists()


@pytest.mark.in_a_file
def test_opening_makes_folders_tables_and_a_write_ahead_log(location, decide):
    ledger = open_ledger(location)
    assert ledger.count_events() == 0
    assert pragma(location.file, "journal_mode") == "wal"
    assert open_to_read(location).count_events() == 0
    ledger.append([decide(Kind.PROPOSED)])
    assert open_ledger(location).count_events() == 1


def test_opening_a_ledger_that_is_there_waits_for_no_writer(location, decide, monkeypatch):
    open_ledger(location).append([decide(Kind.PROPOSED)])
    monkeypatch.setattr(opening, "_prepare_in_transaction", lambda _: pytest.fail("it asked for the lock"))
    monkeypatch.setattr(opening, "_read_version", lambda _: pytest.fail("it waited for the lock"))
    writing = make_ledger_engine(location, Access.WRITE).connect().execution_options(**{WRITING: True})
    with writing as connection, connection.begin():
        assert open_ledger(location, patience_seconds=0).count_events() == 1


def test_who_has_seen_no_tables_looks_again_under_the_lock(location, decide, monkeypatch):
    """Another process has made the ledger, and appended to it, meanwhile."""
    real = opening.run_transaction

    def seen_none(engine, where, work, patience, **options):
        found = real(engine, where, work, patience, **options)
        if work is read_tables_version:
            monkeypatch.setattr(opening, "run_transaction", real)
            open_ledger(location).append([decide(Kind.PROPOSED)])
        return found

    monkeypatch.setattr(opening, "run_transaction", seen_none)
    assert open_ledger(location).count_events() == 1


@pytest.mark.in_a_file
def test_commits_wait_for_the_disk(location):
    with open_ledger(location)._engine.connect() as connection:
        # FULL: https://sqlite.org/pragma.html#pragma_synchronous
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2


def test_reader_cannot_append(location, decide):
    open_ledger(location)
    with pytest.raises(LedgerError, match="read-only"):
        open_to_read(location).append([decide(Kind.PROPOSED)])
    assert open_to_read(location).count_events() == 0


@pytest.mark.in_a_file
def test_an_empty_file_becomes_a_ledger(location):
    location.file.parent.mkdir()
    location.file.touch()
    with pytest.raises(LedgerMissingError):
        open_to_read(location)
    open_ledger(location)
    assert open_to_read(location).count_events() == 0


@pytest.mark.in_a_file
def test_non_database_file_is_left_unchanged(location):
    location.file.parent.mkdir()
    location.file.write_text("my thesis\n" * 500)
    for opened in (open_ledger, open_to_read):
        with pytest.raises(LedgerError, match="is not a SQLite database"):
            opened(location)
    assert location.file.read_text() == "my thesis\n" * 500
    assert list(location.file.parent.iterdir()) == [location.file]


@pytest.mark.in_a_file
def test_foreign_database_is_left_unchanged(location):
    location.file.parent.mkdir()
    with sqlite3.connect(location.file) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    before = location.file.read_bytes()
    for opened in (open_ledger, open_to_read):
        with pytest.raises(LedgerError, match="is a SQLite database, but not a ledger"):
            opened(location)
    assert location.file.read_bytes() == before
    assert list(location.file.parent.iterdir()) == [location.file]


def test_folder_is_not_a_ledger(tmp_path):
    for opened in (open_ledger, open_to_read):
        with pytest.raises(LedgerError, match=r"the ledger .* cannot be"):
            opened(parse_location(str(tmp_path)))


def test_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "data").touch()
    location = parse_location(str(tmp_path / "data" / "ledger.sqlite3"))
    with pytest.raises(LedgerError, match=r"folder .* cannot be created"):
        open_ledger(location)
    with pytest.raises(LedgerError):
        open_to_read(location)


def test_a_newer_versions_tables_are_left_alone(location, changed_by_hand):
    open_ledger(location)
    changed_by_hand(f"INSERT INTO frx_ledger_version VALUES ({TABLES_VERSION + 1})")
    for opened in (open_ledger, open_to_read):
        with pytest.raises(LedgerError, match=f"version {TABLES_VERSION + 1}.* supports {TABLES_VERSION} .*update"):
            opened(location)


@pytest.mark.in_a_file
def test_damaged_file_is_reported_as_damaged(location, decide):
    ledger = open_ledger(location)
    ledger.append([decide(Kind.PROPOSED, reason="r" * 3000) for _ in range(20)])
    page = pragma(location.file, "page_size")
    pristine = location.file.read_bytes()
    # The last pages are the newest events': zeros there are no page of any kind.
    location.file.write_bytes(pristine[: -8 * page] + bytes(8 * page))

    def append():
        open_ledger(location).append([decide(Kind.PROPOSED)])

    for failing in (append, lambda: open_to_read(location).read_events()):
        with pytest.raises(LedgerError, match="is damaged"):
            failing()
    location.file.write_bytes(pristine[:page])
    with pytest.raises(LedgerError, match="is damaged"):
        open_to_read(location)


@pytest.mark.in_a_file
def test_a_lock_that_is_never_given_up(location, decide, monkeypatch):
    monkeypatch.setattr(engine, "BUSY_SECONDS", 0.01)
    open_ledger(location)
    impatient = open_ledger(location, patience_seconds=0)
    other = sqlite3.connect(location.file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="is locked by another process"):
        impatient.append([decide(Kind.PROPOSED)])
    assert open_to_read(location).count_events() == 0  # readers do not wait
    other.execute("ROLLBACK")
    other.close()
    impatient.append([decide(Kind.PROPOSED)])
