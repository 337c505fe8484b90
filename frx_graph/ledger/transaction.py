"""A change to a ledger in one transaction, made again as long as other writers come first."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from frx_graph.ledger.database_errors import explained, was_first
from frx_graph.ledger.engine import WRITING
from frx_graph.ledger.location import Location

_FIRST_PAUSE_SECONDS = 0.005
_LONGEST_PAUSE_SECONDS = 0.25

_Result = TypeVar("_Result")


def in_turn(
    engine: Engine, location: Location, work: Callable[[Connection], _Result], patience_seconds: float
) -> _Result:
    """What `work` returns, once its transaction was committed.

    `work` is called again where another writer was first, for at most `patience_seconds`. Raises LedgerError for what
    goes wrong in the database; what `work` raises itself comes out as it is; in both cases nothing was changed.
    """
    deadline = time.monotonic() + patience_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            with engine.connect().execution_options(**{WRITING: True}) as connection, connection.begin():
                result = work(connection)
        except SQLAlchemyError as error:
            if not was_first(error) or time.monotonic() >= deadline:
                raise explained(error, location) from error
        else:
            return result
        # At random, so that those who wait do not come back at the same moment.
        time.sleep(random.uniform(0, pause))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
