"""SQLAlchemy engines for a ledger in PostgreSQL: what that needs besides its URL stands here, and nowhere else."""

from __future__ import annotations

import functools

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from frx_graph.ledger.database.access import WRITING, Access

_LINK = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "frx",
}
"""How long a server that does not answer is waited for: seconds, `tcp_user_timeout` milliseconds. Without these who has
been cut off from it would wait for hours (https://www.postgresql.org/docs/current/libpq-connect.html)."""

_WRITE = """
SET LOCAL lock_timeout = '2s';
SET LOCAL idle_in_transaction_session_timeout = '10s';
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
SELECT pg_advisory_xact_lock(7382095146166544242)
"""
"""Writers wait for each other, in the order in which they came, instead of being undone: as under SQLite the lock is
taken before the last event is read. Whoever has it knows that no transaction of before is still being committed, so
that what a lost connection may have left is there or will never be.

The lock is of frx alone ("frxledgr" in ASCII), needs no right on a table, and goes with its transaction: at once where
its writer is killed, after ten seconds where that is cut off. Who waits for two seconds asks again. What is committed
is on disk before we are told, whatever the database's default."""


_READ = "SET LOCAL lock_timeout = '5s'"
"""A table that is locked, as while it is migrated, is not waited for without end; reading takes no lock besides."""


def postgres_engine(url: URL, access: Access) -> Engine:
    """An engine for the database there. Nothing is opened yet."""
    return _engine(url, access is Access.READ)


@functools.cache
def _engine(url: URL, reading: bool) -> Engine:
    # Once in a process: an engine asks a server of what kind it is, which takes longer than an append.
    engine = create_engine(
        url,
        poolclass=NullPool,
        connect_args={name: value for name, value in _LINK.items() if name not in url.query},
        # Who reads sees one state of the ledger; who appends must see what was there when it got the lock, and a later
        # level would show what was there when it asked for it.
        isolation_level="REPEATABLE READ" if reading else "READ COMMITTED",
        execution_options={"postgresql_readonly": reading},
        use_native_hstore=False,
    )
    event.listen(engine, "begin", _begin_reading if reading else _begin)
    return engine


def _begin(connection: Connection) -> None:
    if connection.get_execution_options().get(WRITING, False):
        connection.exec_driver_sql(_WRITE)


def _begin_reading(connection: Connection) -> None:
    connection.exec_driver_sql(_READ)
