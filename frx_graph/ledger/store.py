"""Append to an open ledger, and read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Engine, func, insert, not_, or_, select
from sqlalchemy.exc import SQLAlchemyError

from frx_graph.errors import LedgerError
from frx_graph.ledger.active_plans import EventReader, Step, chain_decisions, parse_step
from frx_graph.ledger.database.database_errors import explain_database_error, get_damage
from frx_graph.ledger.database.tables import EVENTS
from frx_graph.ledger.database.transaction import run_transaction
from frx_graph.ledger.decision import Decision, Kind, RecordedEvent
from frx_graph.ledger.event_document import make_event_row, read_event
from frx_graph.ledger.location import Location

PATIENCE_SECONDS = 30.0
"""Seconds for which an append retries while other writers come first."""

_BATCH = 500


@dataclass(frozen=True, slots=True)
class EventFilter:
    """A filter for events. None matches any value, and no kinds match any kind."""

    signature: str | None = None
    environment: str | None = None
    kinds: tuple[Kind, ...] = ()
    before: int | None = None
    """Only events before this position."""


ALL = EventFilter()


class Ledger(EventReader):
    """A ledger's events, in order; `open_ledger` and `open_to_read` create it.

    Every method raises LedgerError, and changes nothing, if the ledger cannot be reached, written or understood. An
    append whose connection is lost for good raises LedgerUncertainError. No connection is kept, so a forked process may
    use an instance.
    """

    def __init__(self, location: Location, engine: Engine, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.location = location
        self._engine = engine
        self._patience_seconds = patience_seconds

    def append(self, decisions: Sequence[Decision]) -> tuple[RecordedEvent, ...]:
        """Append all of `decisions` in order, or none; when this returns they are on disk. Also raises LedgerError for
        a decision that `active_plans.TRANSITIONS` does not allow."""
        if not decisions:
            return ()

        attempts: list[tuple[RecordedEvent, ...]] = []

        def add(connection: Connection) -> tuple[RecordedEvent, ...]:
            for earlier in attempts:
                # If the last is there, all are: the commit was kept, only the answer was lost.
                if _read_one(connection, EVENTS.c.hash == earlier[-1].hash) is not None:
                    return earlier
            recorded = chain_decisions(_StoredEvents(connection), decisions)
            attempts.append(recorded)
            connection.execute(insert(EVENTS), [make_event_row(event) for event in recorded])
            return recorded

        return run_transaction(self._engine, self.location, add, self._patience_seconds)

    @contextmanager
    def open_view(self) -> Iterator[_StoredEvents]:
        """Begin a transaction that only reads, until the end of the block."""
        with self._open_reading() as connection:
            yield _StoredEvents(connection)

    def read_events(self, wanted: EventFilter = ALL, *, newest: int | None = None) -> tuple[RecordedEvent, ...]:
        """Return the matching events, oldest first; with `newest`, only the last that many."""
        query = select(EVENTS.c.document, EVENTS.c.hash).where(*_make_conditions(wanted))
        with self._open_reading() as connection:
            rows = connection.execute(query.order_by(EVENTS.c.position.desc()).limit(newest)).all()
        return tuple(read_event(row.document, row.hash) for row in reversed(rows))

    def count_events(self, wanted: EventFilter = ALL) -> int:
        """Return the number of matching events."""
        query = select(func.count()).select_from(EVENTS).where(*_make_conditions(wanted))
        with self._open_reading() as connection:
            return connection.execute(query).scalar_one()

    def read_at(self, position: int) -> RecordedEvent | None:
        """Return the event at this position, from 1."""
        with self._open_reading() as connection:
            return _read_one(connection, EVENTS.c.position == position)

    def find_by_hash(self, prefix: str) -> RecordedEvent | None:
        """Return the event whose hash begins with `prefix`. Raises LedgerError if several do."""
        with self._open_reading() as connection:
            return _read_one(connection, EVENTS.c.hash.startswith(prefix, autoescape=True))

    def read_evidence(self, event: RecordedEvent) -> RecordedEvent | None:
        """Return the last trial of the event's plan up to and including the event."""
        decision = event.decision
        trials = select(func.max(EVENTS.c.position)).where(
            EVENTS.c.signature == decision.signature,
            EVENTS.c.environment == decision.environment,
            EVENTS.c.plan == decision.plan,
            EVENTS.c.kind == Kind.TRIED.value,
            EVENTS.c.position <= event.position,
        )
        with self._open_reading() as connection:
            return _read_one(connection, EVENTS.c.position == trials.scalar_subquery())

    def read_rows(self) -> Iterator[Mapping[str, object]]:
        """Yield the rows as stored, in order and unparsed, for checks and exports."""
        position = 0
        with self._open_reading() as connection:
            while True:
                query = select(EVENTS).where(EVENTS.c.position > position).order_by(EVENTS.c.position).limit(_BATCH)
                rows = connection.execute(query).mappings().all()
                yield from (dict(row) for row in rows)
                if len(rows) < _BATCH:
                    return
                position = rows[-1]["position"]

    def check_integrity(self) -> str | None:
        """Return the first error that the database's own check finds; None if it finds none or has no such check."""
        if self._engine.dialect.name != "sqlite":
            return None
        try:
            with self._engine.begin() as connection:
                found = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalars().first())
        except SQLAlchemyError as error:
            if (complaint := get_damage(error)) is None:
                raise explain_database_error(error, self.location) from error
            return complaint
        return None if found == "ok" else found

    @contextmanager
    def _open_reading(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise explain_database_error(error, self.location) from error


@dataclass(frozen=True, slots=True)
class _StoredEvents:
    connection: Connection

    def get_last(self) -> tuple[int, str] | None:
        query = select(EVENTS.c.position, EVENTS.c.hash).order_by(EVENTS.c.position.desc()).limit(1)
        row = self.connection.execute(query).one_or_none()
        return None if row is None else (row.position, row.hash)

    def get_row(self, position: int) -> tuple[str, str] | None:
        query = select(EVENTS.c.document, EVENTS.c.hash).where(EVENTS.c.position == position)
        row = self.connection.execute(query).one_or_none()
        return None if row is None else (row.document, row.hash)

    def list_environments(self, signature: str) -> list[str]:
        query = select(EVENTS.c.environment).where(EVENTS.c.signature == signature).distinct()
        return sorted(self.connection.execute(query).scalars())

    def read_steps(self, signature: str, environment: str) -> Iterator[Step]:
        here = (EVENTS.c.signature == signature, EVENTS.c.environment == environment)
        applied = EVENTS.c.kind == Kind.APPLIED.value
        last_applied = select(func.max(EVENTS.c.position)).where(*here, applied).group_by(EVENTS.c.plan)
        columns = (EVENTS.c.position, EVENTS.c.kind, EVENTS.c.plan, EVENTS.c.decided_by, EVENTS.c.recorded_at)
        query = select(*columns).where(*here, or_(not_(applied), EVENTS.c.position.in_(last_applied)))
        for row in self.connection.execute(query.order_by(EVENTS.c.position)):
            yield parse_step(*row)


def _read_one(connection: Connection, condition: ColumnElement[bool]) -> RecordedEvent | None:
    rows = connection.execute(select(EVENTS.c.document, EVENTS.c.hash).where(condition).limit(2)).all()
    if len(rows) > 1:
        raise LedgerError("the hashes of several events begin like this", "give more digits")
    return read_event(rows[0].document, rows[0].hash) if rows else None


def _make_conditions(wanted: EventFilter) -> list[ColumnElement[bool]]:
    equal = {EVENTS.c.signature: wanted.signature, EVENTS.c.environment: wanted.environment}
    conditions = [column == value for column, value in equal.items() if value is not None]
    if wanted.kinds:
        conditions.append(EVENTS.c.kind.in_([kind.value for kind in wanted.kinds]))
    if wanted.before is not None:
        conditions.append(EVENTS.c.position < wanted.before)
    return conditions
