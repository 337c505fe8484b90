"""Opens a ledger: to append, which makes it where it is missing, or to read, which makes nothing."""

from __future__ import annotations

import os
from contextlib import suppress

from sqlalchemy import Connection, Engine, func, insert, inspect, select, update
from sqlalchemy.exc import SQLAlchemyError

from frx_graph.errors import LedgerError, LedgerMissingError
from frx_graph.ledger.access import Access
from frx_graph.ledger.database_errors import explained
from frx_graph.ledger.engine import ledger_engine
from frx_graph.ledger.location import ELSEWHERE, Location, check_there, missing
from frx_graph.ledger.plain_file import TABLES_VERSION
from frx_graph.ledger.sqlite_engine import holds_something_else
from frx_graph.ledger.store import PATIENCE_SECONDS, Ledger
from frx_graph.ledger.tables import METADATA, VERSIONS
from frx_graph.ledger.transaction import in_turn

CHECK_SECONDS = 5.0
"""How long other writers are waited for to see whether a ledger can be written."""


def open_ledger(location: Location, *, patience_seconds: float = PATIENCE_SECONDS) -> Ledger:
    """The ledger there, made if it is missing. Raises LedgerError where that cannot be done."""
    if location.file is not None:
        try:
            location.file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"the ledger's folder {location.file.parent} cannot be made: {error.strerror}"
            raise LedgerError(message, ELSEWHERE) from error
    engine = ledger_engine(location, Access.CREATE)
    try:
        version = in_turn(engine, location, _prepare, patience_seconds)
    except LedgerError:
        # Where tables are not made under a lock, as SQLite makes them, another process may have been first.
        made = _version_there(engine) if location.file is None else None
        if made is None:
            raise
        version = made
    _check_version(version, location)
    return Ledger(location, ledger_engine(location, Access.WRITE), patience_seconds=patience_seconds)


def open_to_read(location: Location) -> Ledger:
    """The ledger there, which can only be read. Raises LedgerMissingError where there is none: nothing is made, and so
    nothing was decided."""
    check_there(location)
    engine = ledger_engine(location, Access.READ)
    try:
        with engine.begin() as connection:
            version = _version(connection)
            if version is None and location.file is not None and inspect(connection).get_table_names():
                raise holds_something_else(location.file)
    except SQLAlchemyError as error:
        raise explained(error, location) from error
    if version is None:
        raise missing(location)
    _check_version(version, location)
    return Ledger(location, engine)


def check_writable(location: Location) -> None:
    """Raises LedgerError where no decision can be recorded there, before somebody works for one. Makes no file."""
    try:
        check_there(location)
    except LedgerMissingError:
        _check_makeable(location)
        return
    open_ledger(location, patience_seconds=CHECK_SECONDS)
    in_turn(ledger_engine(location, Access.WRITE), location, _write_again, CHECK_SECONDS)


def _check_makeable(location: Location) -> None:
    assert location.file is not None
    folder = next(folder for folder in location.file.parents if folder.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise LedgerError(f"the ledger {location} cannot be made: {folder} cannot be written", ELSEWHERE)


def _write_again(connection: Connection) -> None:
    """Changes nothing; that a file is read-only, or the disk is full, shows only when something is written."""
    connection.execute(update(VERSIONS).values(version=VERSIONS.c.version))


def _prepare(connection: Connection) -> int:
    version = _version(connection)
    if version is not None:
        return version
    METADATA.create_all(connection)
    connection.execute(insert(VERSIONS).values(version=TABLES_VERSION))
    return TABLES_VERSION


def _version(connection: Connection) -> int | None:
    """The version of the tables; None where there are none."""
    if not inspect(connection).has_table(VERSIONS.name):
        return None
    version: int | None = connection.execute(select(func.max(VERSIONS.c.version))).scalar_one()
    return version


def _version_there(engine: Engine) -> int | None:
    with suppress(SQLAlchemyError), engine.begin() as connection:
        return _version(connection)
    return None


def _check_version(version: int, location: Location) -> None:
    if version > TABLES_VERSION:
        message = f"the ledger {location} has tables of version {version}, and this frx-graph knows {TABLES_VERSION}"
        raise LedgerError(message, f"update frx-graph, or {ELSEWHERE}")
