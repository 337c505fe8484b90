"""Alembic environment: migrations run in the transaction that `frx_graph.ledger.database.migration` began."""

from __future__ import annotations

from alembic import context

from frx_graph.ledger.database.migration import REVISION_TABLE
from frx_graph.ledger.database.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=REVISION_TABLE,
    render_as_batch=True,  # SQLite changes a table by recreating it
)
with context.begin_transaction():
    context.run_migrations()
