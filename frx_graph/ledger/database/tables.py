"""The tables of a ledger, the same in every database that SQLAlchemy knows.

An event's row is its document and what events are looked up by. `position` and `previous` are both unique, so that of
two writers who saw the same last event only one can append: the events are one chain without gaps.

Whoever changes a table adds a migration to `migrations/versions` that does the same to the tables that are there.
"""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, MetaData, String, Table, Text

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
