"""Locate a ledger: a SQLAlchemy URL, or the path of a SQLite file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from frx_graph.errors import LedgerError, LedgerMissingError
from frx_graph.support.plain_text import clean_line

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

LEDGER_VARIABLE = "FRX_LEDGER"
ELSEWHERE = "name another ledger with --ledger or FRX_LEDGER"
_HINT = "name a file, or a SQLAlchemy URL such as postgresql://user@host/database"


@dataclass(frozen=True, slots=True)
class Location:
    """A ledger's location: the absolute path of a SQLite `file`, or the `server` of a database. `named` is false for
    the default, which need not exist."""

    file: Path | None
    server: URL | None = None
    named: bool = True

    @property
    def url(self) -> URL:
        """The URL of the server, or of the file."""
        # Paths need no SQLAlchemy, whose import takes longer than the rest of a warm start.
        from sqlalchemy.engine import URL

        return self.server or URL.create("sqlite", database=str(self.file))

    def __str__(self) -> str:
        """The location to print: on one line, without passwords."""
        if self.file is not None:
            return clean_line(str(self.file), 1000)
        # Some options hold passwords, too.
        return clean_line(self.url.set(query={}).render_as_string(hide_password=True), 1000)


def choose_location(option: str | None, configured: str | None, environ: Mapping[str, str] = os.environ) -> Location:
    """Return the ledger of the command line, else of `FRX_LEDGER`, else of the configuration, else the default."""
    for text in (option, environ.get(LEDGER_VARIABLE), configured):
        if text:
            return parse_location(text)
    return Location(get_default_file(), named=False)


def parse_location(text: str) -> Location:
    """Return the ledger that `text` names: a URL if it contains `://`, else a path. Raises LedgerError for anything
    else, without repeating a possible password."""
    if "://" not in text:
        return _parse_file(text)
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    scheme = text.partition("://")[0][:40]
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise LedgerError(f"the ledger's URL ({scheme}://…) is invalid", _HINT) from error
    if url.drivername in ("postgresql", "postgres"):  # SQLAlchemy's default driver changes with its version
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername.startswith("postgresql+") and url.drivername != "postgresql+psycopg":
        raise LedgerError(f"a ledger cannot use {scheme}", "write postgresql://, which uses psycopg")
    if url.get_backend_name() != "sqlite":
        return Location(None, url)
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise LedgerError(f"a ledger cannot use {scheme}", "write sqlite:///, or only the file's path")
    if url.host or url.query or (url.database or "").startswith("file:"):
        raise LedgerError("a SQLite ledger's URL takes no host and no options", "give only the file's path")
    if not url.database or url.database == ":memory:":
        raise LedgerError("a ledger in memory would be lost at exit", "name a file")
    return _parse_file(url.database)


def check_exists(location: Location) -> None:
    """Raise LedgerMissingError if there is certainly no ledger, and LedgerError if that cannot be checked."""
    if location.file is None:
        return
    try:
        there = location.file.exists()
    except OSError as error:
        raise LedgerError(f"the ledger {location} cannot be opened: {error.strerror}", ELSEWHERE) from error
    if not there:
        raise make_missing_error(location)


def make_missing_error(location: Location) -> LedgerMissingError:
    """Return the error for a location without a ledger."""
    return LedgerMissingError(f"there is no ledger at {location}", "the first trial creates it")


def _parse_file(text: str) -> Location:
    if "\0" in text:
        raise LedgerError("the ledger's path holds a NUL character", _HINT)
    try:
        return Location(Path(text).expanduser().absolute())
    except RuntimeError as error:
        raise LedgerError(f"the ledger's path {text!r}: {error}", _HINT) from error


def get_default_file() -> Path:
    """Return the path of the ledger in the user's data folder."""
    return Path(platformdirs.user_data_dir("frx-graph")) / "ledger.sqlite3"


def may_exist(configured: str | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return False if no ledger was named and the default one does not exist."""
    return bool(environ.get(LEDGER_VARIABLE) or configured) or get_default_file().exists()
