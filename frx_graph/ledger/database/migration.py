"""Upgrade the tables of an older ledger with the Alembic migrations in `migrations/versions`.

`frx_ledger_version` holds the version of the tables, which every frx-graph checks. Each revision is named after the
number that it writes there. A ledger that was never upgraded has no Alembic table; that number gives its revision.
There are no downgrades: data that a newer version wrote stays.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from frx_graph.ledger.database.engine import Access, make_ledger_engine
from frx_graph.ledger.database.tables import check_tables_version, read_tables_version
from frx_graph.ledger.database.transaction import run_transaction
from frx_graph.ledger.location import Location, check_exists
from frx_graph.ledger.store import PATIENCE_SECONDS

REVISION_TABLE = "frx_ledger_revision"
"""Replaces Alembic's usual `alembic_version`, which other programs may use in the same database."""

_FOLDER = Path(__file__).parents[1] / "migrations"


def upgrade_ledger(location: Location) -> int | None:
    """Upgrade the ledger's tables to this version, all or none, and return their earlier version; None if there were no
    tables. Raises LedgerMissingError for a missing file, and LedgerError for newer tables and database errors."""
    check_exists(location)

    def upgrade(connection: Connection) -> int | None:
        before = read_tables_version(connection)
        if before is not None:
            check_tables_version(before, location, may_be_older=True)
        upgrade_tables(connection, before)
        return before

    return run_transaction(make_ledger_engine(location, Access.WRITE), location, upgrade, PATIENCE_SECONDS)


def upgrade_tables(connection: Connection, version: int | None) -> None:
    """Upgrade tables of this `version` in the transaction of `connection`."""
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    here = MigrationContext.configure(connection, opts={"version_table": REVISION_TABLE})
    if version is not None and here.get_current_revision() is None:
        command.stamp(config, f"{version:04}")
    command.upgrade(config, "head")
