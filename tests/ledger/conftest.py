"""Decisions to record, a place to record them, and texts to compare with."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

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
            "candidates": (Candidate("propagate_layout", "0/0", ("conv2d", "relu"), ("0,2,3,1", "any"), 1.5e-3),),
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


@pytest.fixture
def location(tmp_path: Path) -> Location:
    """A SQLite file that is not there yet, in a folder that is not there yet."""
    return parse_location(str(tmp_path / "data" / "ledger.sqlite3"))


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
