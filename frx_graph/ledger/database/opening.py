"""Open a ledger to append, which creates a missing one, or to read, which creates nothing."""

from __future__ import annotations

import os
from contextlib import suppress

from sqlalchemy import Connection, Engine, insert, inspect, update
from sqlalchemy.exc import SQLAlchemyError

from frx_graph.errors import LedgerError, LedgerMissingError
from frx_graph.ledger.database.database_errors import explain_database_error
from frx_graph.ledger.database.engine import Access, make_ledger_engine, make_not_ledger_error
from frx_graph.ledger.database.tables import METADATA, VERSIONS, check_tables_version, read_tables_version
from frx_graph.ledger.database.transaction import run_transaction
from frx_graph.ledger.location import ELSEWHERE, Location, check_exists, make_missing_error
from frx_graph.ledger.plain_file import TABLES_VERSION
from frx_graph.ledger.store import PATIENCE_SECONDS, Ledger

CHECK_SECONDS = 5.0
"""Seconds to wait for other writers when checking that a ledger can be written."""


def open_ledger(location: Location, *, patience_seconds: float = PATIENCE_SECONDS) -> Ledger:
    """Open the ledger for appending. Creates a missing ledger and upgrades a file's tables. Raises LedgerError."""
    if location.file is not None:
        try:
            location.file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"the ledger's folder {location.file.parent} cannot be created: {error.strerror}"
            raise LedgerError(message, ELSEWHERE) from error
    engine = make_ledger_engine(location, Access.CREATE)
    # Tables are never removed or downgraded, so a check without the writers' lock stays valid.
    version = run_transaction(engine, location, read_tables_version, patience_seconds, writing=False)
    if version is None or version < TABLES_VERSION:
        version = _prepare_tables(engine, location, patience_seconds)
    check_tables_version(version, location)
    return Ledger(location, make_ledger_engine(location, Access.WRITE), patience_seconds=patience_seconds)


def open_to_read(location: Location) -> Ledger:
    """Open the ledger for reading; creates nothing. Raises LedgerMissingError if it does not exist."""
    check_exists(location)
    engine = make_ledger_engine(location, Access.READ)
    try:
        with engine.begin() as connection:
            version = read_tables_version(connection)
            if version is None and location.file is not None and inspect(connection).get_table_names():
                raise make_not_ledger_error(location.file)
    except SQLAlchemyError as error:
        raise explain_database_error(error, location) from error
    if version is None:
        raise make_missing_error(location)
    check_tables_version(version, location)
    return Ledger(location, engine)


def check_writable(location: Location) -> None:
    """Raise LedgerError if no decision can be recorded there, before any long work begins. Creates no file."""
    try:
        check_exists(location)
    except LedgerMissingError:
        assert location.file is not None
        folder = next(folder for folder in location.file.parents if folder.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            message = f"the ledger {location} cannot be created: {folder} cannot be written"
            raise LedgerError(message, ELSEWHERE) from None
        return
    open_ledger(location, patience_seconds=CHECK_SECONDS)
    # Only a write shows that a file is read-only or the disk is full.
    same = update(VERSIONS).values(version=VERSIONS.c.version)
    engine = make_ledger_engine(location, Access.WRITE)
    run_transaction(engine, location, lambda connection: connection.execute(same), CHECK_SECONDS)


def _prepare_tables(engine: Engine, location: Location, patience_seconds: float) -> int:
    try:
        return run_transaction(engine, location, _prepare_in_transaction, patience_seconds)
    except LedgerError:
        # Only SQLite creates tables under a lock; elsewhere another process may have been first.
        made = _read_version(engine) if location.file is None else None
        if made is None:
            raise
        return made


def _prepare_in_transaction(connection: Connection) -> int:
    version = read_tables_version(connection)
    if version is not None:
        if version < TABLES_VERSION and connection.dialect.name == "sqlite":
            # Upgrade a file only: on a server others may still need the old tables, so the user upgrades explicitly.
            from frx_graph.ledger.database.migration import upgrade_tables

            upgrade_tables(connection, version)
            return TABLES_VERSION
        return version
    METADATA.create_all(connection)
    connection.execute(insert(VERSIONS).values(version=TABLES_VERSION))
    return TABLES_VERSION


def _read_version(engine: Engine) -> int | None:
    with suppress(SQLAlchemyError), engine.begin() as connection:
        return read_tables_version(connection)
    return None
