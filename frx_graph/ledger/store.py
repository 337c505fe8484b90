"""A ledger that is open: appended to, and read."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, func, insert, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from frx_graph.errors import LedgerError, LedgerMissingError
from frx_graph.ledger.database_errors import explained, is_damage, was_first
from frx_graph.ledger.decision import Decision, Kind, Recorded
from frx_graph.ledger.engine import WRITING, Access, ledger_engine
from frx_graph.ledger.event_document import NO_EVENT, read_event, record
from frx_graph.ledger.event_row import event_row
from frx_graph.ledger.location import Location
from frx_graph.ledger.standing import Standing, Step, fold
from frx_graph.ledger.tables import EVENTS, METADATA, TABLES_VERSION, VERSIONS

PATIENCE_SECONDS = 30.0
"""How long an append goes on when other writers are always first."""

_LONGEST_PAUSE_SECONDS = 0.25
_BATCH = 500

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events are wanted; None: any. `kinds` none: all."""

    signature: str | None = None
    environment: str | None = None
    kinds: tuple[Kind, ...] = ()


class Ledger:
    """A ledger's events, in their order. Every method raises LedgerError, and changes nothing, where the ledger cannot
    be reached, written or understood. No connection is kept: an instance may be used in a forked process."""

    def __init__(self, location: Location, engine: Engine, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.location = location
        self._engine = engine
        self._patience_seconds = patience_seconds

    def append(self, decisions: Sequence[Decision]) -> tuple[Recorded, ...]:
        """Add all of `decisions`, in their order, or none; when this returns they are on disk.

        Raises LedgerError, too, for a decision that must not follow what is there: see `transitions`.
        """
        if not decisions:
            return ()

        def add(connection: Connection) -> tuple[Recorded, ...]:
            recorded = _chain(connection, decisions)
            connection.execute(insert(EVENTS), [event_row(event) for event in recorded])
            return recorded

        return _in_turn(self._engine, self.location, add, self._patience_seconds)

    def standing(self, signature: str, environment: str) -> Standing:
        """What all that was decided about one graph in one environment comes to."""
        with self._reading() as connection:
            return fold(_steps(connection, signature, environment))

    def steps_by_environment(self, signature: str) -> Mapping[str, tuple[Step, ...]]:
        """All that was decided about one graph, by environment: what `elsewhere` reads."""
        with self._reading() as connection:
            query = select(EVENTS.c.environment).where(EVENTS.c.signature == signature).distinct()
            names = sorted(connection.execute(query).scalars())
            return {name: tuple(_steps(connection, signature, name)) for name in names}

    def events(self, wanted: EventFilter | None = None, *, newest: int | None = None) -> tuple[Recorded, ...]:
        """The events that are wanted, oldest first; with `newest` only that many of the last."""
        query = select(EVENTS.c.document, EVENTS.c.hash).where(*_conditions(wanted or EventFilter()))
        query = query.order_by(EVENTS.c.position.desc()).limit(newest)
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return tuple(read_event(row.document, row.hash) for row in reversed(rows))

    def count(self, wanted: EventFilter | None = None) -> int:
        """How many events there are of those wanted."""
        query = select(func.count()).select_from(EVENTS).where(*_conditions(wanted or EventFilter()))
        with self._reading() as connection:
            return connection.execute(query).scalar_one()

    def at(self, position: int) -> Recorded | None:
        """The event at this place, from 1."""
        return self._one(EVENTS.c.position == position)

    def with_hash(self, prefix: str) -> Recorded | None:
        """The event whose hash begins with `prefix`. Raises LedgerError where several do."""
        return self._one(EVENTS.c.hash.startswith(prefix, autoescape=True))

    def rows(self) -> Iterator[Mapping[str, object]]:
        """The rows as they are stored, in their order, unread: for `verify` and for export."""
        with self._reading() as connection:
            position = None
            while True:
                query = select(EVENTS).order_by(EVENTS.c.position).limit(_BATCH)
                if position is not None:
                    query = query.where(EVENTS.c.position > position)
                rows = connection.execute(query).mappings().all()
                yield from (dict(row) for row in rows)
                if len(rows) < _BATCH:
                    return
                position = rows[-1]["position"]

    def engine_complaints(self) -> tuple[str, ...]:
        """What the database's own check finds wrong with its file; nothing where it has no such check."""
        if self._engine.dialect.name != "sqlite":
            return ()
        try:
            with self._engine.begin() as connection:
                found = [str(line) for line in connection.exec_driver_sql("PRAGMA integrity_check").scalars()]
        except SQLAlchemyError as error:
            if is_damage(error):
                return (str(explained(error, self.location)),)
            raise explained(error, self.location) from error
        return tuple(line for line in found if line != "ok")

    def _one(self, condition: ColumnElement[bool]) -> Recorded | None:
        query = select(EVENTS.c.document, EVENTS.c.hash).where(condition).limit(2)
        with self._reading() as connection:
            rows = connection.execute(query).all()
        if len(rows) > 1:
            raise LedgerError("several events have a hash that begins so", "give more of it")
        return read_event(rows[0].document, rows[0].hash) if rows else None

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """One state of the ledger, whatever is appended meanwhile."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise explained(error, self.location) from error


def open_ledger(location: Location, *, patience_seconds: float = PATIENCE_SECONDS) -> Ledger:
    """The ledger there, made if it is missing. Raises LedgerError where that cannot be done."""
    if location.file is not None:
        try:
            location.file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"the ledger's folder {location.file.parent} cannot be made: {error.strerror}"
            raise LedgerError(message, "name another ledger with --ledger or FRX_LEDGER") from error
    engine = ledger_engine(location, Access.CREATE)
    try:
        version = _in_turn(engine, location, _prepare, patience_seconds)
    except LedgerError:
        # Where tables are not made under a lock, somebody else may have been making them.
        if (made := _version_there(engine)) is None:
            raise
        version = made
    _check_version(version, location)
    return Ledger(location, ledger_engine(location, Access.WRITE), patience_seconds=patience_seconds)


def open_to_read(location: Location) -> Ledger:
    """The ledger there, which can only be read. Raises LedgerMissingError where there is none: nothing is made, and so
    nothing was decided."""
    missing = LedgerMissingError(f"there is no ledger at {location} yet", "the first trial makes it")
    if location.file is not None and not location.file.exists():
        raise missing
    engine = ledger_engine(location, Access.READ)
    try:
        with engine.begin() as connection:
            version = _version(connection)
    except SQLAlchemyError as error:
        raise explained(error, location) from error
    if version is None:
        raise missing
    _check_version(version, location)
    return Ledger(location, engine)


def _prepare(connection: Connection) -> int:
    version = _version(connection)
    if version is None:
        METADATA.create_all(connection)
        connection.execute(insert(VERSIONS).values(version=TABLES_VERSION))
    return version or TABLES_VERSION


def _version(connection: Connection) -> int | None:
    """The version of the tables; None where there are none."""
    if not inspect(connection).has_table(VERSIONS.name):
        return None
    version: int | None = connection.execute(select(func.max(VERSIONS.c.version))).scalar_one()
    return version


def _version_there(engine: Engine) -> int | None:
    with suppress(SQLAlchemyError), engine.begin() as connection:
        return _version(connection)
    return None


def _check_version(version: int, location: Location) -> None:
    if version > TABLES_VERSION:
        message = f"the ledger {location} has tables of version {version}, and this frx-graph knows {TABLES_VERSION}"
        raise LedgerError(message, "update frx-graph, or name another ledger with --ledger or FRX_LEDGER")


def _in_turn(
    engine: Engine, location: Location, work: Callable[[Connection], _Result], patience_seconds: float
) -> _Result:
    """What `work` returns, in a transaction that was committed. Where another writer was first, again."""
    deadline = time.monotonic() + patience_seconds
    pause = 0.005
    while True:
        try:
            with engine.connect().execution_options(**{WRITING: True}) as connection, connection.begin():
                result = work(connection)
        except SQLAlchemyError as error:
            if not was_first(error) or time.monotonic() >= deadline:
                raise explained(error, location) from error
            # Not all at the same moment again.
            time.sleep(random.uniform(0, pause))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        else:
            return result


def _chain(connection: Connection, decisions: Sequence[Decision]) -> tuple[Recorded, ...]:
    """The decisions as events behind the last one, if they may follow what is there."""
    # The last event comes first: what is appended by others after it was read makes ours fail, and be made again.
    last = connection.execute(
        select(EVENTS.c.position, EVENTS.c.hash).order_by(EVENTS.c.position.desc()).limit(1)
    ).one_or_none()
    position, previous = (0, NO_EVENT) if last is None else (last.position, last.hash)
    standings: dict[tuple[str, str], Standing] = {}
    recorded = []
    for decision in decisions:
        key = (decision.signature, decision.environment)
        if key not in standings:
            standings[key] = fold(_steps(connection, *key))
        position += 1
        event = record(decision, position, previous)
        previous = event.hash
        if (objection := standings[key].objection(decision)) is not None:
            raise LedgerError(objection, "read what stands there, and decide again")
        standings[key] = standings[key].after(Step.of(event))
        recorded.append(event)
    return tuple(recorded)


def _steps(connection: Connection, signature: str, environment: str) -> Iterable[Step]:
    columns = (EVENTS.c.position, EVENTS.c.kind, EVENTS.c.plan, EVENTS.c.decided_by, EVENTS.c.recorded_at)
    query = select(*columns).where(EVENTS.c.signature == signature, EVENTS.c.environment == environment)
    for row in connection.execute(query.order_by(EVENTS.c.position)):
        try:
            kind, at = Kind(row.kind), datetime.fromisoformat(row.recorded_at)
        except ValueError as error:
            raise LedgerError(f"event {row.position} is not what it should be: {error}", "frx ledger verify") from error
        yield Step(row.position, kind, row.plan, row.decided_by, at)


def _conditions(wanted: EventFilter) -> list[ColumnElement[bool]]:
    conditions = []
    if wanted.signature is not None:
        conditions.append(EVENTS.c.signature == wanted.signature)
    if wanted.environment is not None:
        conditions.append(EVENTS.c.environment == wanted.environment)
    if wanted.kinds:
        conditions.append(EVENTS.c.kind.in_([kind.value for kind in wanted.kinds]))
    return conditions
