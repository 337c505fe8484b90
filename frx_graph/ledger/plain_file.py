"""Read and append to a SQLite ledger without SQLAlchemy, whose import takes longer than the whole operation.

Rows, order and rules match `store`. Anything unusual (no tables, another version's tables, a lock, a read-only folder,
a damaged file) raises `NotPlainError` and changes nothing. Callers then use `store`, which waits or explains the error.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from frx_graph.ledger.active_plans import EventReader, Step, chain_decisions, parse_step
from frx_graph.ledger.decision import Decision, RecordedEvent
from frx_graph.ledger.event_document import make_event_row, read_event

TABLES_VERSION = 1
"""Increases with any change of the tables that an older version could not read."""

_PATIENCE_SECONDS = 0.5
"""Seconds to wait for a lock; `store` waits longer."""

_STEPS = """
SELECT position, kind, plan, decided_by, recorded_at FROM frx_ledger_events
WHERE signature = :signature AND environment = :environment AND (kind != 'applied' OR position IN (
    SELECT max(position) FROM frx_ledger_events
    WHERE signature = :signature AND environment = :environment AND kind = 'applied' GROUP BY plan))
ORDER BY position
"""
_ENVIRONMENTS = "SELECT DISTINCT environment FROM frx_ledger_events WHERE signature = ? ORDER BY environment"
_EVIDENCE = """
SELECT document, hash FROM frx_ledger_events WHERE position = (
    SELECT max(position) FROM frx_ledger_events
    WHERE signature = ? AND environment = ? AND plan = ? AND kind = 'tried' AND position <= ?)
"""
_INSERT = """
INSERT INTO frx_ledger_events (
    position, hash, previous, kind, signature, environment, plan, decided_by, recorded_at, document)
VALUES (:position, :hash, :previous, :kind, :signature, :environment, :plan, :decided_by, :recorded_at, :document)
"""


class NotPlainError(Exception):
    """The ledger must be opened by `store`."""


class PlainFile(EventReader):
    """An open SQLite ledger; `open_plain_file` opens it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @contextlib.contextmanager
    def open_view(self) -> Iterator[PlainFile]:
        """Begin a transaction that only reads, until the end of the block."""
        self._connection.execute("BEGIN")
        with self._connection:
            yield self

    def read_evidence(self, event: RecordedEvent) -> RecordedEvent | None:
        """Return the last trial of the event's plan up to and including the event."""
        one = event.decision
        found = self._connection.execute(_EVIDENCE, (one.signature, one.environment, one.plan, event.position))
        row = found.fetchone()
        return None if row is None else read_event(*row)

    def append(self, decisions: Sequence[Decision]) -> tuple[RecordedEvent, ...]:
        """Append all of `decisions` in order, or none; when this returns they are on disk. Raises LedgerError for
        a decision that is not allowed."""
        # A committed event survives a crash of the process, and a power loss.
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            recorded = chain_decisions(self, decisions)
            self._connection.executemany(_INSERT, [make_event_row(event) for event in recorded])
        return recorded

    def get_last(self) -> tuple[int, str] | None:
        """Return the position and hash of the last event."""
        query = "SELECT position, hash FROM frx_ledger_events ORDER BY position DESC LIMIT 1"
        found: tuple[int, str] | None = self._connection.execute(query).fetchone()
        return found

    def read_steps(self, signature: str, environment: str) -> Iterator[Step]:
        """Yield the steps that decide the states for one graph in one environment."""
        for row in self._connection.execute(_STEPS, {"signature": signature, "environment": environment}):
            yield parse_step(*row)

    def get_row(self, position: int) -> tuple[str, str] | None:
        """Return the document and hash of an event."""
        query = "SELECT document, hash FROM frx_ledger_events WHERE position = ?"
        found: tuple[str, str] | None = self._connection.execute(query, (position,)).fetchone()
        return found

    def list_environments(self, signature: str) -> list[str]:
        """Return the environments with decisions about a graph, sorted."""
        return [name for (name,) in self._connection.execute(_ENVIRONMENTS, (signature,))]


@contextlib.contextmanager
def open_plain_file(file: Path) -> Iterator[PlainFile]:
    """Open the ledger in `file` until the end of the block. Raises `NotPlainError`, also from within the block."""
    uri = f"file:{quote(str(file))}?mode=rw"
    try:
        # No isolation level: sqlite3 would begin transactions by itself. Another thread may close it.
        connection = sqlite3.connect(
            uri, uri=True, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            _check(connection)
            yield PlainFile(connection)
        finally:
            _close(connection)
    except sqlite3.Error as error:
        raise NotPlainError(str(error)) from error


def _close(connection: sqlite3.Connection) -> None:
    # The last process to close copies the write-ahead log into the database. That takes about as long as the append, so
    # a thread does it. If the thread does not run, the next process to open the ledger does it.
    if connection.total_changes:
        with contextlib.suppress(RuntimeError):  # no thread can start while the interpreter shuts down
            threading.Thread(target=connection.close, name="frx-ledger").start()
            return
    connection.close()


def _check(connection: sqlite3.Connection) -> None:
    version, journal = (
        connection.execute(query).fetchone()[0]
        for query in ("SELECT max(version) FROM frx_ledger_version", "PRAGMA journal_mode")
    )
    if version != TABLES_VERSION or journal != "wal":
        raise NotPlainError(f"tables of version {version}, journal {journal}")
