"""SQLAlchemy engines for a ledger in a SQLite file: what that needs stands here, and nowhere else."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from frx_graph.errors import LedgerError
from frx_graph.ledger.database.access import WRITING, Access
from frx_graph.ledger.database.database_errors import PRIMARY_CODE
from frx_graph.ledger.database.tables import EVENTS

BUSY_SECONDS = 2.0
"""How long SQLite itself waits for another process before it says so; who appends then asks again."""


def holds_something_else(file: Path) -> LedgerError:
    """The error for a SQLite database with tables, none of them a ledger's."""
    return LedgerError(f"{file} is a SQLite database, but no ledger", "name another file")


def sqlite_engine(file: Path, access: Access) -> Engine:
    """An engine for that file, which is not opened yet."""

    def connect() -> sqlite3.Connection:
        return _open_to_read(file) if access is Access.READ else _open(file, f"mode={access.value}")

    def make_durable(connection: Any, _record: object) -> None:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if names and EVENTS.name not in names:
            raise holds_something_else(file)  # and is left as it is
        # A committed event survives the end of the process, and of the power.
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA journal_mode=WAL")

    # The URL names only the dialect: how the file is opened decides whether it may come into being.
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    if access is not Access.READ:
        event.listen(engine, "connect", make_durable)
    event.listen(engine, "begin", _begin)
    return engine


def _open(file: Path, options: str) -> sqlite3.Connection:
    # No isolation level: sqlite3 would begin transactions by itself, and too late; see `_begin`.
    uri = f"file:{quote(str(file))}?{options}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    return connection


def _open_to_read(file: Path) -> sqlite3.Connection:
    """In a folder that cannot be written SQLite reads a ledger only as one that nobody changes, which it is where
    nothing waits in its write-ahead log."""
    connection = _open(file, "mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        connection.close()
        code = getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE
        if code not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN) or not _all_in_file(file):
            raise
        return _open(file, "mode=ro&immutable=1")
    return connection


def _all_in_file(file: Path) -> bool:
    log = file.with_name(f"{file.name}-wal")
    try:
        return file.is_file() and not (log.exists() and log.stat().st_size)
    except OSError:
        return False


def _text(stored: bytes) -> str:
    """Bytes that are no text, in a damaged file, become other text: that its hash is wrong is seen then."""
    return stored.decode("utf-8", "backslashreplace")


def _begin(connection: Connection) -> None:
    """Who is to append takes the lock before reading the last event, so that nobody comes between."""
    writing = connection.get_execution_options().get(WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
