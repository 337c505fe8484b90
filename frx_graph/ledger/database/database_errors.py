"""Separate the database errors that allow another try from the errors to report."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError

from frx_graph.errors import LedgerError, LedgerUnreachableError, summarize_error
from frx_graph.ledger.location import ELSEWHERE, Location

PRIMARY_CODE = 0xFF
"""The part of SQLite's extended error codes that names the error (https://sqlite.org/rescode.html)."""

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})

# PostgreSQL's codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
_LOCKED_STATE = "55P03"
_UNDONE_STATES = frozenset({"40001", "40P01", _LOCKED_STATE})
"""Serialization failure, deadlock, lock timeout: the transaction was rolled back, and may be repeated."""
_UNIQUE_STATE = "23505"
_CONNECTION_CLASS = "08"
_LOST_STATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "53300"})
"""The server is shut down, has crashed, is still starting, timed out waiting for frx, or has too many connections."""
_REFUSED = (
    "authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "does not exist",
    "not permitted to log in",
    "permission denied",
    "not currently accepting connections",
    "configuration parameter",
    "invalid value for parameter",
)
"""Messages of a server that will refuse later attempts, too. A failed connection has no error code, and the server may
localise messages (`lc_messages`), so any other message allows another try. No append is then lost while a server
starts; in return, a wrong password may be reported more slowly."""

_TOLD: dict[int | str | None, tuple[str, str]] = {
    sqlite3.SQLITE_FULL: ("cannot be written: the disk is full", f"free some space, or {ELSEWHERE}"),
    sqlite3.SQLITE_IOERR: ("cannot be read or written: the disk is full or broken", f"free some space, or {ELSEWHERE}"),
    sqlite3.SQLITE_READONLY: ("cannot be written: it or its folder is read-only", ELSEWHERE),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", f"check the folder and its permissions, or {ELSEWHERE}"),
    sqlite3.SQLITE_PERM: ("cannot be opened: not permitted", ELSEWHERE),
    sqlite3.SQLITE_NOTADB: ("is not a SQLite database", ELSEWHERE),
    sqlite3.SQLITE_CORRUPT: ("is damaged", f"keep a copy and put it aside, or {ELSEWHERE}"),
    **dict.fromkeys((*_BUSY, _LOCKED_STATE), ("is locked by another process", "try again when that has ended")),
    "25006": ("cannot be written: the database is read-only", ELSEWHERE),
    "53100": ("cannot be written: the disk is full", f"free some space, or {ELSEWHERE}"),
}
"""Errors, with a hint each, by SQLite's code and by PostgreSQL's."""


def is_lost_race(error: SQLAlchemyError) -> bool:
    """Return True if another writer came first and the transaction was rolled back, so that it may be repeated."""
    state = _get_sqlstate(error)
    if isinstance(error, IntegrityError):
        return state in (None, _UNIQUE_STATE)
    return _get_sqlite_code(error) in _BUSY or state in _UNDONE_STATES


def is_lost_connection(error: SQLAlchemyError) -> bool:
    """Return True if the server cannot be reached for now, so that another try may succeed. After a connection lost
    during a commit, the transaction may or may not have been kept."""
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    state = _get_sqlstate(error)
    if state is not None:
        return state.startswith(_CONNECTION_CLASS) or state in _LOST_STATES
    if not isinstance(error, OperationalError) or _get_sqlite_code(error) is not None:
        return False
    text = str(error.orig)
    return not any(words in text for words in _REFUSED)


def get_damage(error: SQLAlchemyError) -> str | None:
    """Return SQLite's message for a damaged file; None for other errors."""
    return (
        str(error.orig) if isinstance(error, DBAPIError) and _get_sqlite_code(error) == sqlite3.SQLITE_CORRUPT else None
    )


def explain_database_error(error: SQLAlchemyError, location: Location) -> LedgerError:
    """Return the error in one line that names the ledger, without SQL or a password. It is a LedgerUnreachableError if
    the server cannot be reached."""
    if told := _TOLD.get(_get_sqlite_code(error)) or _TOLD.get(_get_sqlstate(error)):
        return LedgerError(f"the ledger {location} {told[0]}", told[1])
    if isinstance(error, IntegrityError):
        return LedgerError(f"the ledger {location} is busy with other writers", "try again")
    text = summarize_error(error.orig if isinstance(error, DBAPIError) and error.orig is not None else error)
    if location.url.password:
        text = text.replace(str(location.url.password), "***")
    if is_lost_connection(error):
        message = f"the ledger {location} cannot be reached: {text}"
        return LedgerUnreachableError(message, f"try again later, or {ELSEWHERE}")
    return LedgerError(f"the ledger {location} cannot be used: {text}", ELSEWHERE)


def _get_sqlstate(error: SQLAlchemyError) -> str | None:
    """Return SQL's code of five characters, if the driver gives one."""
    state = getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None
    return state if isinstance(state, str) else None


def _get_sqlite_code(error: SQLAlchemyError) -> int | None:
    """Return SQLite's primary error code; None for other errors."""
    code = getattr(error.orig, "sqlite_errorcode", None) if isinstance(error, DBAPIError) else None
    return None if code is None else code & PRIMARY_CODE
