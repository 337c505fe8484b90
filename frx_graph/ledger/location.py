"""Where a ledger is: a SQLAlchemy URL, or the path of a SQLite file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from frx_graph.errors import LedgerError
from frx_graph.ledger.default_place import LEDGER_VARIABLE, default_file
from frx_graph.reports.plain_text import one_line

_HINT = "name a file, or a SQLAlchemy URL such as postgresql+psycopg://user@host/database"


@dataclass(frozen=True, slots=True)
class Location:
    """A ledger's place. `file` is that of SQLite, absolute; None for a database server. `named` is false for the
    default, which need not be there."""

    url: URL
    file: Path | None
    named: bool = True

    def __str__(self) -> str:
        """The place as people may see it: on one line, without passwords."""
        text = str(self.file) if self.file is not None else without_secrets(self.url)
        return one_line(text, 1000)


def choose_location(option: str | None, configured: str | None, environ: Mapping[str, str] = os.environ) -> Location:
    """The ledger that the command line names, else `FRX_LEDGER`, else the configuration, else the default."""
    for text in (option, environ.get(LEDGER_VARIABLE), configured):
        if text:
            return parse_location(text)
    file = default_file()
    return Location(_file_url(file), file, named=False)


def parse_location(text: str) -> Location:
    """The ledger that `text` names: a URL where it holds `://`, else a path. Raises LedgerError, without repeating what
    may be a password, for what is neither."""
    if "://" not in text:
        return _file(text)
    scheme = text.partition("://")[0][:40]
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise LedgerError(f"the ledger's URL ({scheme}://…) cannot be understood", _HINT) from error
    if url.get_backend_name() != "sqlite":
        return Location(url, None)
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise LedgerError(f"a ledger cannot use {scheme}", "write sqlite:///, or only the file's path")
    if url.host or url.query or (url.database or "").startswith("file:"):
        raise LedgerError("a SQLite ledger's URL takes no host and no options", "give only the file's path")
    if not url.database or url.database == ":memory:":
        raise LedgerError("a ledger in memory would forget everything", "name a file")
    return _file(url.database)


def without_secrets(url: URL) -> str:
    """The URL without password, and without its options, which some drivers take passwords in."""
    return url.set(query={}).render_as_string(hide_password=True)


def _file(text: str) -> Location:
    if "\0" in text:
        raise LedgerError("the ledger's path holds a NUL character", _HINT)
    try:
        file = Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise LedgerError(f"the ledger's path {text!r}: {error}", _HINT) from error
    return Location(_file_url(file), file)


def _file_url(file: Path) -> URL:
    return URL.create("sqlite", database=str(file))
