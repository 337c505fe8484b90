"""Decisions to record, a place to record them, and texts to compare with."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from postgres_server import NoPostgresError, PostgresServer, postgres_server
from sqlalchemy.pool import NullPool

from frx_graph.ledger.decision import Decision, Kind
from frx_graph.ledger.location import Location, parse_location
from frx_graph.records import Candidate

START = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
TRIAL = (
    '{"schema": "frx_trial_v1", "verdict": "promote", "gates": [{"name": "numerics", "passed": true}], '
    '"stats": {"ratio_median": 1.125, "ci_low": 1.10, "ci_high": 1.15, "quads": 21, "processes": 3}}'
)


@pytest.fixture
def decide() -> Callable[..., Decision]:
    """Decisions about the first plan of the first graph, a minute after each other, unless something else is said."""
    count = 0

    def made(kind: Kind, plan: str = "1", **fields: Any) -> Decision:
        nonlocal count
        count += 1
        given = {
            "signature": "a" * 16,
            "environment": "b" * 16,
            "reason": f"reason {count}",
            "decided_by": "autopilot",
            "host": "here",
            "process_id": 7,
            "recorded_at": START + timedelta(minutes=count),
            "policy": "d" * 16,
            "candidates": (Candidate("propagate_layout", "0/0", ("conv2d", "relu"), ("0,2,3,1", "any"), 1.5e-3, 1e-2),),
            "trial": TRIAL if kind is Kind.TRIED else None,
        }
        return Decision(kind=kind, plan=plan * 16, **{**given, **fields})

    return made


@pytest.fixture
def promoted(decide: Callable[..., Decision]) -> Callable[..., list[Decision]]:
    """Proposed, tried and promoted."""
    return lambda *plan, **fields: [
        decide(kind, *plan, **fields) for kind in (Kind.PROPOSED, Kind.TRIED, Kind.PROMOTED)
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of a ledger runs on each database, unless its mark says that it is about files."""
    if "new_location" in metafunc.fixturenames and metafunc.definition.get_closest_marker("in_a_file") is None:
        metafunc.parametrize("new_location", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(postgres_server(durable=False))
        except NoPostgresError as error:
            pytest.skip(f"no PostgreSQL: {error}")
        yield server


@pytest.fixture
def new_location(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Location]:
    """Places where there is no ledger yet: SQLite files in folders that are not there yet, or schemas in PostgreSQL."""
    numbers = itertools.count()
    if getattr(request, "param", "sqlite") == "sqlite":
        return lambda: parse_location(str(tmp_path / f"data{next(numbers)}" / "ledger.sqlite3"))
    server: PostgresServer = request.getfixturevalue("postgres")

    return lambda: parse_location(server.url(schema=server.new_schema()))


@pytest.fixture
def location(new_location: Callable[[], Location]) -> Location:
    """One of them."""
    return new_location()


@pytest.fixture
def changed_by_hand(location: Location) -> Callable[[str], None]:
    """Changes the ledger behind its back."""

    def change(sql: str) -> None:
        with sqlalchemy.create_engine(location.url, poolclass=NullPool).begin() as connection:
            connection.exec_driver_sql(sql)

    return change


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compares a text with the file that holds what it should be.

    `FRX_GOLDEN=write pytest tests/ledger` writes the files anew; look at the difference before committing it.
    """

    def compare(name: str, actual: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if os.environ.get("FRX_GOLDEN") == "write":
            path.write_bytes(actual.encode("utf-8"))
        assert path.read_bytes().decode("utf-8") == actual, f"golden/{name} differs"

    return compare
