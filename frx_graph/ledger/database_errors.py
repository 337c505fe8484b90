"""What a database's error means: to try again, or something to tell."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from frx_graph.errors import LedgerError, first_line
from frx_graph.ledger.location import ELSEWHERE, Location

PRIMARY_CODE = 0xFF
"""The part of SQLite's extended error codes that names the error (https://sqlite.org/rescode.html)."""

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_UNDONE_STATES = frozenset({"40001", "40P01"})
"""SQL's serialization failure and PostgreSQL's deadlock: the transaction was undone, and may be made again."""

_SQLITE = {
    sqlite3.SQLITE_FULL: ("cannot be written: the disk is full", f"free some space, or {ELSEWHERE}"),
    sqlite3.SQLITE_IOERR: ("cannot be read or written: the disk is full or broken", f"free some space, or {ELSEWHERE}"),
    sqlite3.SQLITE_READONLY: ("cannot be written: it or its folder is read-only", ELSEWHERE),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", f"check the folder and its permissions, or {ELSEWHERE}"),
    sqlite3.SQLITE_PERM: ("cannot be opened: not permitted", ELSEWHERE),
    sqlite3.SQLITE_NOTADB: ("is not a SQLite database", ELSEWHERE),
    sqlite3.SQLITE_CORRUPT: ("is damaged", f"keep a copy and put it aside, or {ELSEWHERE}"),
    **dict.fromkeys(_BUSY, ("is locked by another process", "try again when that has ended")),
}


def was_first(error: SQLAlchemyError) -> bool:
    """Whether another writer came first and nothing of the transaction was kept, so that it may be made again."""
    if isinstance(error, IntegrityError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    return _sqlite_code(error) in _BUSY or state in _UNDONE_STATES


def damage(error: SQLAlchemyError) -> str | None:
    """What SQLite says of its damaged file; None for other errors."""
    return str(error.orig) if isinstance(error, DBAPIError) and _sqlite_code(error) == sqlite3.SQLITE_CORRUPT else None


def explained(error: SQLAlchemyError, location: Location) -> LedgerError:
    """The error in one line that names the ledger, and neither SQL nor a password."""
    code = _sqlite_code(error)
    if code in _SQLITE:
        what, hint = _SQLITE[code]
        return LedgerError(f"the ledger {location} {what}", hint)
    if isinstance(error, IntegrityError):
        return LedgerError(f"the ledger {location} is appended to by others all the time", "try again")
    text = first_line(error.orig if isinstance(error, DBAPIError) and error.orig is not None else error)
    if location.url.password:
        text = text.replace(str(location.url.password), "***")
    return LedgerError(f"the ledger {location} cannot be used: {text}", ELSEWHERE)


def _sqlite_code(error: SQLAlchemyError) -> int | None:
    """SQLite's primary error code; None for other errors."""
    code = getattr(error.orig, "sqlite_errorcode", None) if isinstance(error, DBAPIError) else None
    return None if code is None else code & PRIMARY_CODE
