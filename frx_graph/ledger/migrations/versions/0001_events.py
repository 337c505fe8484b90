"""Create the events and the version of the tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create them."""
    versions = op.create_table(
        "frx_ledger_version", sa.Column("version", sa.Integer, primary_key=True, autoincrement=False)
    )
    op.bulk_insert(versions, [{"version": 1}])
    op.create_table(
        "frx_ledger_events",
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("previous", sa.String(64), nullable=False, unique=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("signature", sa.String(16), nullable=False),
        sa.Column("environment", sa.String(16), nullable=False),
        sa.Column("plan", sa.String(16), nullable=False),
        sa.Column("decided_by", sa.Text, nullable=False),
        sa.Column("recorded_at", sa.String(32), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_index("frx_ledger_standing", "frx_ledger_events", ["signature", "environment", "position"])
