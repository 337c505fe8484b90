"""How many events a second a ledger acknowledges, from one writer and from several at a time, in each database.

    python benchmarks/ledger_rate.py [--seconds 5] [--output FILE]

Every writer is a process of its own that appends one event after the other, each about another graph, as fast as they
are acknowledged: "kept open" opens the ledger once, "opened each time" for every event, as programs do that start and
record that a plan is applied. Both databases are as safe as in use: what is acknowledged is on the disk. PostgreSQL is
a server of its own, on the same machine. Prints JSON with rates, and milliseconds of an append; exit code 1 where an
event that was acknowledged is not there, or a ledger not sound.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy
from postgres_server import PostgresServer, postgres_server

from frx_graph.ledger import fast_path
from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import Decision, Kind, RecordedEvent
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.verification import verify

WRITERS = (1, 4, 16)
KEPT_OPEN, EACH_TIME = "kept open", "opened each time"
START_SECONDS = 1.0
"""Until then all writers are there."""

Append = Callable[[Sequence[Decision]], Sequence[RecordedEvent]]


def append_until(name: str, way: str, number: int, start: float, end: float) -> list[tuple[str, float]]:
    """One writer, from `start` to `end` of the system's monotonic clock: each event's hash, and its seconds."""
    place = parse_location(name)
    append: Append = (
        open_ledger(place).append if way == KEPT_OPEN else functools.partial(fast_path.append_decisions, place)
    )
    time.sleep(max(0.0, start - time.monotonic()))
    told: list[tuple[str, float]] = []
    while (begun := time.monotonic()) < end:
        (event,) = append([decision(f"{number:04x}{len(told):012x}")])
        told.append((event.hash, time.monotonic() - begun))
    return told


def decision(signature: str) -> Decision:
    return Decision(
        kind=Kind.PROPOSED,
        signature=signature,
        environment="e" * 16,
        plan="b" * 16,
        reason="how fast",
        decided_by="benchmark",
        host="localhost",
        process_id=os.getpid(),
        recorded_at=datetime.now(UTC),
    )


def measured(database: str, name: str, way: str, writers: int, seconds: float) -> dict[str, Any]:
    """The figures of so many writers on a ledger that is new."""
    open_ledger(parse_location(name))
    start = time.monotonic() + START_SECONDS
    with multiprocessing.get_context("fork").Pool(writers) as pool:
        arguments = [(name, way, number, start, start + seconds) for number in range(writers)]
        told = [event for events in pool.starmap(append_until, arguments, chunksize=1) for event in events]
    ledger = open_to_read(parse_location(name))
    stored = {str(row["hash"]) for row in ledger.read_rows()}
    tenths = statistics.quantiles([1e3 * took for _, took in told], n=100)
    return {
        "database": database,
        "ledger": way,
        "writers": writers,
        "events_per_second": round(len(told) / seconds, 1),
        "median_ms": round(tenths[49], 2),
        "p99_ms": round(tenths[98], 2),
        "acknowledged": len(told),
        "lost": len({event for event, _ in told} - stored),
        "not_acknowledged": len(stored) - len(told),
        "sound": verify(ledger).problem is None,
    }


def machine(server: PostgresServer) -> dict[str, Any]:
    """Where, and with what."""
    with psycopg.connect(server.url().replace("+psycopg", "")) as connection:
        settings = {
            name: connection.execute(f"SHOW {name}".encode()).fetchall()[0][0]
            for name in ("server_version", "fsync", "synchronous_commit", "wal_sync_method")
        }
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": cpu[0].partition(":")[2].strip() if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "sqlalchemy": sqlalchemy.__version__,
        "psycopg": psycopg.__version__,
        "sqlite": sqlite3.sqlite_version,
        "postgresql": settings,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each line of the result")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, postgres_server(durable=True) as server:
        results = []
        for writers in WRITERS:
            for way in (KEPT_OPEN, EACH_TIME):
                file = str(Path(folder) / f"{writers} {way}" / "ledger.sqlite3")
                for database, name in (("SQLite", file), ("PostgreSQL", server.url(schema=server.new_schema()))):
                    results.append(measured(database, name, way, writers, options.seconds))
                    print(results[-1], file=sys.stderr)
        figures = {"machine": machine(server), "seconds": options.seconds, "results": results}
    text = json.dumps({"schema": "frx_ledger_rate_v1", **figures}, indent=2) + "\n"
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text)
    return 0 if all(result["sound"] and not result["lost"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
