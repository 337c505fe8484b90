"""Writers of a ledger ended by SIGKILL at random moments, mid-trial and mid-append: nothing acknowledged is lost.

    python benchmarks/ledger_kills.py --kills 1000

A round starts some writers on one ledger, kills each after a random time, and then looks: the file opens, every event
that a writer had been told of is at its place, the whole ledger verifies, and the next round's writers go on with it.
Prints figures as JSON; exit code 1 where anything was lost or broken.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from frx_graph.errors import LedgerMissingError
from frx_graph.ledger.decision import Decision, Kind
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.opening import open_ledger, open_to_read
from frx_graph.ledger.store import Ledger
from frx_graph.ledger.verification import verify

LONGEST_LIFE_SECONDS = 0.25
LONGEST_TRIAL_SECONDS = 0.01
LARGEST_TRIAL_SAMPLES = 20_000
ROUNDS_PER_LEDGER = 25
"""A ledger is verified as a whole after each round; a new one keeps that short."""


@dataclasses.dataclass
class Figures:
    kills: int = 0
    rounds: int = 0
    ledgers: int = 0
    acknowledged: int = 0
    stored: int = 0
    killed_before_first_event: int = 0
    kept_unacknowledged: int = 0
    """Committed, and killed before saying so."""
    lost: int = 0
    broken: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


def write_until_killed(location: str, number: int, seed: int, told: int) -> None:
    """Decide on and on, and write each event's place and hash to the pipe `told` once it is acknowledged."""
    draw = random.Random(seed)
    ledger = open_ledger(parse_location(location))
    while True:
        plan = f"{draw.getrandbits(64):016x}"
        first = decision(Kind.PROPOSED, plan, number)
        acknowledge(ledger, told, first)
        time.sleep(draw.uniform(0, LONGEST_TRIAL_SECONDS))
        samples = [draw.random() for _ in range(draw.randrange(LARGEST_TRIAL_SAMPLES))]
        trial = json.dumps({"schema": "frx_trial_v1", "samples": samples})
        tried = dataclasses.replace(first, kind=Kind.TRIED, trial=trial)
        acknowledge(ledger, told, tried, decision(Kind.PROMOTED, plan, number))
        acknowledge(ledger, told, decision(Kind.APPLIED, plan, number))
        if draw.random() < 0.3:
            acknowledge(ledger, told, decision(Kind.EXPIRED, plan, number))


def decision(kind: Kind, plan: str, number: int) -> Decision:
    return Decision(
        kind=kind,
        signature="5" * 16,
        environment=f"{number:016x}",
        plan=plan,
        reason="to be killed",
        decided_by="benchmark",
        host="localhost",
        process_id=os.getpid(),
        recorded_at=datetime.now(UTC),
    )


def acknowledge(ledger: Ledger, told: int, *decisions: Decision) -> None:
    for event in ledger.append(decisions):
        os.write(told, f"{event.position} {event.hash}\n".encode())


def killed_round(location: str, writers: int, draw: random.Random) -> list[set[tuple[int, str]]]:
    """Start the writers, kill each at a random moment; what each was told. Of every two the first one's time begins
    with its first event, so that some get far on a machine that is busy, too."""
    started = []
    for number in range(writers):
        reading, told = os.pipe()
        seed, life = draw.getrandbits(32), draw.uniform(0, LONGEST_LIFE_SECONDS)
        process = os.fork()
        if process == 0:
            try:
                write_until_killed(location, number, seed, told)
            finally:
                traceback.print_exc()
                os._exit(70)
        os.close(told)
        started.append((number % 2 == 0, life, process, reading))
    begun = time.monotonic()
    for patient, life, process, reading in sorted(started):
        if patient:
            select.select([reading], [], [])
            time.sleep(life)
        else:
            time.sleep(max(0.0, begun + life - time.monotonic()))
        os.kill(process, signal.SIGKILL)
    events = []
    for _, _, process, reading in started:
        with os.fdopen(reading) as pipe:
            # A line is written at once, but the last may be cut where the pipe was full.
            lines = [line.split() for line in pipe.read().splitlines(keepends=True) if line.endswith("\n")]
        events.append({(int(position), name) for position, name in lines})
        _, status = os.waitpid(process, 0)
        if not os.WIFSIGNALED(status):
            raise RuntimeError(f"a writer ended by itself, with {os.waitstatus_to_exitcode(status)}")
    return events


def look(location: str, acknowledged: set[tuple[int, str]], figures: Figures) -> int:
    """How many events are there; what is missing or broken goes to `figures`."""
    try:
        ledger = open_to_read(parse_location(location))
    except LedgerMissingError:
        figures.lost += len(acknowledged)
        return 0  # all were killed before the ledger was made
    there = {(row["position"], row["hash"]) for row in ledger.rows()}
    figures.lost += len(acknowledged - there)
    found = verify(ledger)
    if found.problem is not None:
        figures.broken.append(f"event {found.problem.position}: {found.problem.what}")
    return len(there)


def run(kills: int, writers: int, seed: int, folder: Path) -> Figures:
    draw = random.Random(seed)
    figures, begun = Figures(), time.monotonic()
    stored = 0
    acknowledged: set[tuple[int, str]] = set()
    while figures.kills < kills:
        if figures.rounds % ROUNDS_PER_LEDGER == 0:
            figures.ledgers += 1
            figures.stored += stored
            figures.kept_unacknowledged += stored - len(acknowledged)
            stored, acknowledged = 0, set()
        location = str(folder / f"{figures.ledgers}" / "ledger.sqlite3")
        told = killed_round(location, min(writers, kills - figures.kills), draw)
        figures.rounds += 1
        figures.kills += len(told)
        figures.killed_before_first_event += sum(not events for events in told)
        figures.acknowledged += sum(map(len, told))
        acknowledged = acknowledged.union(*told)
        stored = look(location, acknowledged, figures)
    figures.stored += stored
    figures.kept_unacknowledged += stored - len(acknowledged)
    figures.seconds = round(time.monotonic() - begun, 1)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--writers", type=int, default=2, help="at the same time")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = run(arguments.kills, arguments.writers, arguments.seed, Path(folder))
    print(json.dumps(dataclasses.asdict(figures), indent=2))
    return 1 if figures.lost or figures.broken else 0


if __name__ == "__main__":
    sys.exit(main())
