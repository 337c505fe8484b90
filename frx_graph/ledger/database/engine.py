"""SQLAlchemy engines for a ledger."""

from __future__ import annotations

import enum
import functools
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from frx_graph.errors import LedgerError
from frx_graph.ledger.database.database_errors import PRIMARY_CODE
from frx_graph.ledger.database.tables import EVENTS
from frx_graph.ledger.location import ELSEWHERE, Location

WRITING = "frx_writing"
"""Execution option of connections that append."""


class Access(enum.Enum):
    """Access modes of an engine, in the words of SQLite's `mode`."""

    CREATE = "rwc"
    WRITE = "rw"
    READ = "ro"


def make_ledger_engine(location: Location, access: Access) -> Engine:
    """Return an engine without a pool, since forked processes must not share a connection. Opens nothing yet. Raises
    LedgerError for a database that SQLAlchemy or this installation does not support."""
    if location.file is not None:
        return make_sqlite_engine(location.file, access)
    try:
        if location.url.get_backend_name() == "postgresql":
            return make_postgres_engine(location.url, access is Access.READ)
        return create_engine(location.url, poolclass=NullPool)
    except NoSuchModuleError as error:
        raise LedgerError(f"the ledger {location}: SQLAlchemy does not support this database", ELSEWHERE) from error
    except ImportError as error:
        name = error.name or "its driver"
        wanted = "'frx-graph[postgres]'" if name == "psycopg" else name
        raise LedgerError(f"the ledger {location} needs the package {name}", f"pip install {wanted}") from error
    except (ArgumentError, ValueError, TypeError) as error:
        raise LedgerError(f"the ledger's URL {location} cannot be used", ELSEWHERE) from error


_POSTGRES_LINK = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "frx",
}
"""Time limits for a server that does not answer, in seconds (`tcp_user_timeout` in milliseconds). Without them a lost
connection would hang for hours (https://www.postgresql.org/docs/current/libpq-connect.html)."""

_WRITE = """
SET LOCAL lock_timeout = '2s';
SET LOCAL idle_in_transaction_session_timeout = '10s';
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
SELECT pg_advisory_xact_lock(7382095146166544242)
"""
"""Makes writers wait for each other, in order of arrival. As under SQLite, a writer takes the lock before it reads the
last event. No earlier transaction is still being committed then, so the transaction of a lost connection is either
visible or gone for good.

Only frx uses this lock ("frxledgr" in ASCII). It needs no right on a table and ends with its transaction: at once if
the writer is killed, after ten seconds if it is cut off. A waiting writer tries again after two seconds. A commit
returns once it is on disk, whatever the database's default.
"""

_READ = "SET LOCAL lock_timeout = '5s'"
"""Limits the wait for a locked table, as during a migration; reading takes no lock."""


@functools.cache
def make_postgres_engine(url: URL, reading: bool) -> Engine:
    """Return an engine for the database there. Opens nothing yet."""
    # Once per process: an engine queries the kind of server, which takes longer than an append.
    engine = create_engine(
        url,
        poolclass=NullPool,
        connect_args={name: value for name, value in _POSTGRES_LINK.items() if name not in url.query},
        # A reader sees one state of the ledger. A writer must see the state at the time it gets the lock; a stricter
        # level would show the state at the time of the request.
        isolation_level="REPEATABLE READ" if reading else "READ COMMITTED",
        execution_options={"postgresql_readonly": reading},
        use_native_hstore=False,
    )

    def begin(connection: Connection) -> None:
        if reading:
            connection.exec_driver_sql(_READ)
        elif connection.get_execution_options().get(WRITING, False):
            connection.exec_driver_sql(_WRITE)

    event.listen(engine, "begin", begin)
    return engine


BUSY_SECONDS = 2.0
"""Seconds that SQLite waits for another process before it reports a lock; an append then tries again."""


def make_not_ledger_error(file: Path) -> LedgerError:
    """Return the error for a SQLite database whose tables are not a ledger's."""
    return LedgerError(f"{file} is a SQLite database, but not a ledger", "name another file")


def make_sqlite_engine(file: Path, access: Access) -> Engine:
    """Return an engine for that file. Opens nothing yet."""

    def make_durable(connection: Any, _record: object) -> None:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if names and EVENTS.name not in names:
            raise make_not_ledger_error(file)  # the file is not changed
        # A committed event survives a crash of the process, and a power loss.
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA journal_mode=WAL")

    # The URL names only the dialect: the mode of opening decides if the file may be created.
    opening = partial(_open_to_read, file) if access is Access.READ else partial(_open_sqlite, file, access.value)
    engine = create_engine("sqlite://", creator=opening, poolclass=NullPool)
    if access is not Access.READ:
        event.listen(engine, "connect", make_durable)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _open_sqlite(file: Path, mode: str) -> sqlite3.Connection:
    # No isolation level: sqlite3 would begin transactions by itself, and too late; see `_begin_sqlite`.
    uri = f"file:{quote(str(file))}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    # Invalid bytes of a damaged file become other text; the hash check then fails.
    connection.text_factory = lambda stored: stored.decode("utf-8", "backslashreplace")
    return connection


def _open_to_read(file: Path) -> sqlite3.Connection:
    # In a read-only folder SQLite needs `immutable`, which is safe if nothing waits in the write-ahead log.
    connection = _open_sqlite(file, "ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        connection.close()
        code = getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE
        if code not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN) or not _is_wal_empty(file):
            raise
        return _open_sqlite(file, "ro&immutable=1")
    return connection


def _is_wal_empty(file: Path) -> bool:
    log = file.with_name(f"{file.name}-wal")
    try:
        return file.is_file() and not (log.exists() and log.stat().st_size)
    except OSError:
        return False


def _begin_sqlite(connection: Connection) -> None:
    # Writers take the lock before they read the last event, so that no other writer comes between.
    writing = connection.get_execution_options().get(WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
