"""Which tables a ledger has, and whether this version knows them."""

from __future__ import annotations

from sqlalchemy import Connection, func, inspect, select

from frx_graph.errors import LedgerError
from frx_graph.ledger.database.tables import VERSIONS
from frx_graph.ledger.location import ELSEWHERE, Location
from frx_graph.ledger.plain_file import TABLES_VERSION


def tables_version(connection: Connection) -> int | None:
    """The version of the tables that are there; None where there are none."""
    if not inspect(connection).has_table(VERSIONS.name):
        return None
    version: int | None = connection.execute(select(func.max(VERSIONS.c.version))).scalar_one()
    return version


def check_not_newer(version: int, location: Location) -> None:
    """Raises LedgerError for tables that only a later version knows."""
    if version > TABLES_VERSION:
        raise LedgerError(_of(version, location), f"update frx-graph, or {ELSEWHERE}")


def check_this(version: int, location: Location) -> None:
    """Raises LedgerError for tables that are not those of this version."""
    check_not_newer(version, location)
    if version < TABLES_VERSION:
        raise LedgerError(_of(version, location), "frx ledger upgrade")


def _of(version: int, location: Location) -> str:
    return f"the ledger {location} has tables of version {version}, and this frx-graph knows {TABLES_VERSION}"
