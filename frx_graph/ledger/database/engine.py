"""SQLAlchemy engines for a ledger."""

from __future__ import annotations

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from frx_graph.errors import LedgerError
from frx_graph.ledger.database.access import Access
from frx_graph.ledger.database.postgres_engine import postgres_engine
from frx_graph.ledger.database.sqlite_engine import sqlite_engine
from frx_graph.ledger.location import ELSEWHERE, Location


def ledger_engine(location: Location, access: Access) -> Engine:
    """An engine without a pool: decisions are rare, a connection must not be shared with a forked process, and a server
    has a place for each. Nothing is opened yet. Raises LedgerError for a database that SQLAlchemy, or this
    installation, does not know."""
    if location.file is not None:
        return sqlite_engine(location.file, access)
    try:
        if location.url.get_backend_name() == "postgresql":
            return postgres_engine(location.url, access)
        return create_engine(location.url, poolclass=NullPool)
    except NoSuchModuleError as error:
        raise LedgerError(f"the ledger {location}: SQLAlchemy knows no such database", ELSEWHERE) from error
    except ImportError as error:
        name = error.name or "its driver"
        wanted = "'frx-graph[postgres]'" if name == "psycopg" else name
        raise LedgerError(f"the ledger {location} needs the package {name}", f"pip install {wanted}") from error
    except (ArgumentError, ValueError, TypeError) as error:
        raise LedgerError(f"the ledger's URL {location} cannot be used", ELSEWHERE) from error
