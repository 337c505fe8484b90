"""Change a ledger in one transaction, repeated while other writers come first or the connection is lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from frx_graph.errors import LedgerUncertainError
from frx_graph.ledger.database.database_errors import explain_database_error, is_lost_connection, is_lost_race
from frx_graph.ledger.database.engine import WRITING
from frx_graph.ledger.location import Location

_FIRST_PAUSE_SECONDS = 0.005
_LONGEST_PAUSE_SECONDS = 0.25

_Result = TypeVar("_Result")


def run_transaction(
    engine: Engine,
    location: Location,
    work: Callable[[Connection], _Result],
    patience_seconds: float,
    *,
    writing: bool = True,
) -> _Result:
    """Run `work` in a transaction, and return its result once that is committed. `work` is called again if another
    writer was first or the connection was lost, for at most `patience_seconds`: an earlier transaction may have been
    kept, so it must not repeat its changes. Without `writing` it waits for no writer. Raises LedgerError for errors of
    the database, and those of `work`. Nothing was changed then, except for LedgerUncertainError."""
    deadline = time.monotonic() + patience_seconds
    pause = _FIRST_PAUSE_SECONDS
    uncertain = False
    while True:
        committing = False
        try:
            with engine.connect().execution_options(**{WRITING: writing}) as connection, connection.begin():
                result = work(connection)
                committing = writing
        except SQLAlchemyError as error:
            lost = is_lost_connection(error)
            if committing:
                uncertain = lost
            if not (lost or is_lost_race(error)) or time.monotonic() >= deadline:
                told = explain_database_error(error, location)
                raise (LedgerUncertainError(told.message, told.hint) if uncertain else told) from error
        else:
            return result
        # Random, so that waiting writers do not all retry at once.
        time.sleep(random.uniform(0, pause))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
