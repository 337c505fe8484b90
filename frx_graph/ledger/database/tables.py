"""The tables of a ledger, the same in every database that SQLAlchemy supports.

An event's row is the document and the columns for look-ups. `position` and `previous` are both unique, so of two
writers that saw the same last event only one can append. The events form one chain without gaps.

A change to a table needs a migration in `migrations/versions` that does the same to existing tables.
"""

from __future__ import annotations

from sqlalchemy import Column, Connection, Index, Integer, MetaData, String, Table, Text, func, inspect, select

from frx_graph.errors import LedgerError
from frx_graph.ledger.location import ELSEWHERE, Location
from frx_graph.ledger.plain_file import TABLES_VERSION

METADATA = MetaData()

VERSIONS = Table("frx_ledger_version", METADATA, Column("version", Integer, primary_key=True, autoincrement=False))

EVENTS = Table(
    "frx_ledger_events",
    METADATA,
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("previous", String(64), nullable=False, unique=True),
    Column("kind", String(16), nullable=False),
    Column("signature", String(16), nullable=False),
    Column("environment", String(16), nullable=False),
    Column("plan", String(16), nullable=False),
    Column("decided_by", Text, nullable=False),
    Column("recorded_at", String(32), nullable=False),
    Column("document", Text, nullable=False),
    Index("frx_ledger_standing", "signature", "environment", "position"),
)


def read_tables_version(connection: Connection) -> int | None:
    """Return the version of the existing tables; None if there are no tables."""
    if not inspect(connection).has_table(VERSIONS.name):
        return None
    version: int | None = connection.execute(select(func.max(VERSIONS.c.version))).scalar_one()
    return version


def check_tables_version(version: int, location: Location, *, may_be_older: bool = False) -> None:
    """Raise LedgerError for tables of another version."""
    if version > TABLES_VERSION or (version < TABLES_VERSION and not may_be_older):
        what = f"the ledger {location} has tables of version {version}, and this frx-graph supports {TABLES_VERSION}"
        newer = version > TABLES_VERSION
        raise LedgerError(what, f"update frx-graph, or {ELSEWHERE}" if newer else "frx ledger upgrade")
