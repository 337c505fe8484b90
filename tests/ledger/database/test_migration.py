"""Older ledgers get this version's tables, on each database; newer ones are left alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.pool import NullPool

from frx_graph.errors import LedgerError, LedgerMissingError
from frx_graph.ledger import plain_file
from frx_graph.ledger.database import migration, opening, tables
from frx_graph.ledger.database.migration import upgrade_ledger
from frx_graph.ledger.database.opening import check_writable, open_ledger, open_to_read
from frx_graph.ledger.database.tables import METADATA
from frx_graph.ledger.decision import Kind
from frx_graph.ledger.fast_path import append_decisions
from frx_graph.ledger.location import Location, parse_location
from frx_graph.ledger.plain_file import TABLES_VERSION
from frx_graph.ledger.verification import Verification, verify

NEXT = TABLES_VERSION + 1
NEXT_REVISION = f'''
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{NEXT:04}", "{TABLES_VERSION:04}"

def upgrade():
    op.execute("INSERT INTO frx_ledger_version VALUES ({NEXT})")
    with op.batch_alter_table("frx_ledger_events") as events:
        events.add_column(sa.Column("colour", sa.Text))
        {{then}}
'''


@pytest.fixture
def empty(location: Location) -> Location:
    """A database without tables: of SQLite an empty file."""
    if location.file is not None:
        location.file.parent.mkdir()
        location.file.touch()
    return location


def connected(location: Location) -> sqlalchemy.Connection:
    return sqlalchemy.create_engine(location.url, poolclass=NullPool).connect()


def revision(location: Location) -> str | None:
    with connected(location) as connection:
        context = MigrationContext.configure(connection, opts={"version_table": migration.REVISION_TABLE})
        return context.get_current_revision()


def columns(location: Location) -> set[str]:
    with connected(location) as connection:
        return {column["name"] for column in sqlalchemy.inspect(connection).get_columns("frx_ledger_events")}


@pytest.fixture
def next_version(monkeypatch, tmp_path):
    """This program as its next version, with one more migration. `then` is more that this does."""

    def become(then: str = "") -> None:
        folder = tmp_path / "50% more" / "migrations"
        shutil.copytree(Path(migration.__file__).parents[1] / "migrations", folder)
        (folder / "versions" / f"{NEXT:04}_colour.py").write_text(NEXT_REVISION.format(then=then))
        monkeypatch.setattr(migration, "_FOLDER", folder)
        for module in (opening, plain_file, tables):
            monkeypatch.setattr(module, "TABLES_VERSION", NEXT)

    return become


def test_migrations_and_models_make_the_same_tables(empty):
    assert upgrade_ledger(empty) is None
    with connected(empty) as connection:
        options = {"version_table": migration.REVISION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, METADATA) == []
        connection.exec_driver_sql("ALTER TABLE frx_ledger_events ADD COLUMN colour TEXT")
        assert [change[0] for change in compare_metadata(context, METADATA)] == ["remove_column"]
    assert revision(empty) == f"{TABLES_VERSION:04}"


def test_a_migrated_ledger_is_used_like_any_other(empty, promoted):
    upgrade_ledger(empty)
    append_decisions(empty, promoted())
    check_writable(empty)
    assert verify(open_to_read(empty)) == Verification(3, None)


def test_a_ledger_that_was_never_migrated_is_adopted(location, promoted):
    open_ledger(location).append(promoted())
    assert revision(location) is None
    assert [upgrade_ledger(location) for _ in range(2)] == [TABLES_VERSION] * 2
    assert revision(location) == f"{TABLES_VERSION:04}"
    assert verify(open_to_read(location)) == Verification(3, None)


def test_the_next_version_upgrades_what_this_one_made(location, decide, promoted, next_version):
    open_ledger(location).append(promoted())
    next_version()
    for opened in (open_to_read, *([] if location.file else [open_ledger])):
        with pytest.raises(LedgerError, match=f"version {TABLES_VERSION}, .* supports {NEXT} .*frx ledger upgrade"):
            opened(location)
    assert "colour" not in columns(location)
    assert upgrade_ledger(location) == TABLES_VERSION
    assert "colour" in columns(location)
    assert revision(location) == f"{NEXT:04}"
    open_ledger(location).append([decide(Kind.APPLIED)])
    assert verify(open_to_read(location)) == Verification(4, None)


@pytest.mark.in_a_file
def test_appending_upgrades_the_file(location, decide, promoted, next_version):
    open_ledger(location).append(promoted())
    next_version()
    append_decisions(location, [decide(Kind.APPLIED)])
    assert "colour" in columns(location)
    assert verify(open_to_read(location)) == Verification(4, None)


def test_a_migration_that_fails_changes_nothing(location, promoted, next_version):
    open_ledger(location).append(promoted())
    next_version("events.drop_column('no such column')")
    with pytest.raises((LedgerError, KeyError)):
        upgrade_ledger(location)
    assert "colour" not in columns(location)
    assert revision(location) is None
    with connected(location) as connection:
        assert connection.exec_driver_sql("SELECT max(version) FROM frx_ledger_version").scalar() == TABLES_VERSION


def test_newer_tables_are_left_alone(location, changed_by_hand):
    open_ledger(location)
    changed_by_hand(f"INSERT INTO frx_ledger_version VALUES ({NEXT})")
    with pytest.raises(LedgerError, match=f"version {NEXT}, .* supports {TABLES_VERSION} .*update"):
        upgrade_ledger(location)
    assert revision(location) is None


def test_upgrade_of_a_missing_ledger_creates_no_file(tmp_path):
    with pytest.raises(LedgerMissingError):
        upgrade_ledger(parse_location(str(tmp_path / "ledger.sqlite3")))
    assert not list(tmp_path.iterdir())
