"""What a database's error means: to try again, or something to tell."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from frx_graph.errors import LedgerError, first_line
from frx_graph.ledger.location import Location

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_RETRIED_STATES = {"40001", "40P01"}
"""SQL's serialization failure and PostgreSQL's deadlock: the transaction was undone, and may be made again."""

_ELSEWHERE = "name another ledger with --ledger or FRX_LEDGER"
_SQLITE = {
    sqlite3.SQLITE_FULL: ("cannot be written: the disk is full", f"free some space, or {_ELSEWHERE}"),
    sqlite3.SQLITE_IOERR: ("cannot be read or written: an input or output error, or a full disk", _ELSEWHERE),
    sqlite3.SQLITE_READONLY: ("cannot be written: it or its folder is read-only", _ELSEWHERE),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", f"check the folder and its permissions, or {_ELSEWHERE}"),
    sqlite3.SQLITE_PERM: ("cannot be opened: not permitted", _ELSEWHERE),
    sqlite3.SQLITE_NOTADB: ("is not a SQLite database", _ELSEWHERE),
    sqlite3.SQLITE_CORRUPT: ("is damaged", f"put it aside and keep it, or {_ELSEWHERE}"),
    sqlite3.SQLITE_BUSY: ("is locked by another process", "try again when that has ended"),
    sqlite3.SQLITE_LOCKED: ("is locked by another process", "try again when that has ended"),
}


def was_first(error: SQLAlchemyError) -> bool:
    """Whether another writer came first and nothing of the transaction was kept, so that it may be made again."""
    if isinstance(error, IntegrityError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    return _sqlite_code(error) in _BUSY or state in _RETRIED_STATES


def is_damage(error: SQLAlchemyError) -> bool:
    """Whether SQLite found its own file damaged."""
    return _sqlite_code(error) == sqlite3.SQLITE_CORRUPT


def explained(error: SQLAlchemyError, location: Location) -> LedgerError:
    """The error in one line that names the ledger, and neither SQL nor a password."""
    code = _sqlite_code(error)
    if code in _SQLITE:
        what, hint = _SQLITE[code]
        return LedgerError(f"the ledger {location} {what}", hint)
    text = first_line(error.orig if isinstance(error, DBAPIError) and error.orig is not None else error)
    if location.url.password:
        text = text.replace(str(location.url.password), "***")
    return LedgerError(f"the ledger {location} cannot be used: {text}", _ELSEWHERE)


def _sqlite_code(error: SQLAlchemyError) -> int | None:
    """SQLite's primary error code; None for other errors."""
    code = getattr(error.orig, "sqlite_errorcode", None) if isinstance(error, DBAPIError) else None
    return None if code is None else code & 0xFF
