"""Writers of a ledger ended by SIGKILL at random moments, mid-trial and mid-append: nothing acknowledged is lost.

    python benchmarks/ledger_kills.py --kills 1000

A round starts some writers on one ledger, kills each after a random time, and then looks: the file opens, every event
that a writer had been told of is at its place, the whole ledger verifies, and the next round's writers go on with it.
Beside them two processes run real trials, with arms in processes of their own, and record what these decide: a part of
the kills is theirs, and none of their arms may be left five seconds later.
Prints figures as JSON; exit code 1 where anything was lost, broken or left.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import random
import select
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from trial_writer import marked, seconds_until_gone, try_until_killed
from writer_process import Writer, started

from frx_graph.errors import LedgerMissingError
from frx_graph.ledger import fast_path
from frx_graph.ledger.database.opening import open_ledger, open_to_read
from frx_graph.ledger.decision import Decision, Kind, RecordedEvent
from frx_graph.ledger.location import parse_location
from frx_graph.ledger.verification import verify

Append = Callable[[Sequence[Decision]], Sequence[RecordedEvent]]

LONGEST_LIFE_SECONDS = 0.25
LONGEST_TRIAL_SECONDS = 0.01
LARGEST_TRIAL_SAMPLES = 20_000
TRIALS_AT_ONCE = 2
LONGEST_PART_SECONDS = 12.0
LONGEST_TRIAL_LIFE_SECONDS = 60.0
"""Six arms are started in a trial, and each imports torch."""
WHOLE_TRIALS = 0.15
"""Share of the trials that may live long enough to be recorded."""
SAY_SECONDS = 20.0
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
    trials_killed: int = 0
    killed_with_arms: int = 0
    """Of these, while at least one arm was running."""
    killed_after_a_whole_trial: int = 0
    """And with at least one trial recorded."""
    arms_left: int = 0
    slowest_end_seconds: float = 0.0
    """From a kill to the end of its last arm."""
    lost: int = 0
    broken: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


def write_until_killed(location: str, number: int, seed: int, told: int) -> None:
    """Decide on and on, and write each event's place and hash to the pipe `told` once it is acknowledged."""
    draw = random.Random(seed)
    place = parse_location(location)
    # The whole way to a ledger, and the short one, which programs with promoted rewrites go.
    append: Append = (
        open_ledger(place).append if number % 4 < 2 else functools.partial(fast_path.append_decisions, place)
    )
    while True:
        plan = f"{draw.getrandbits(64):016x}"
        first = decision(Kind.PROPOSED, plan, number)
        acknowledge(append, told, first)
        time.sleep(draw.uniform(0, LONGEST_TRIAL_SECONDS))
        samples = [draw.random() for _ in range(draw.randrange(LARGEST_TRIAL_SAMPLES))]
        trial = json.dumps({"schema": "frx_trial_v1", "samples": samples})
        tried = dataclasses.replace(first, kind=Kind.TRIED, trial=trial)
        acknowledge(append, told, tried, decision(Kind.PROMOTED, plan, number))
        acknowledge(append, told, decision(Kind.APPLIED, plan, number))
        if draw.random() < 0.3:
            acknowledge(append, told, decision(Kind.EXPIRED, plan, number))


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


def acknowledge(append: Append, told: int, *decisions: Decision) -> None:
    for event in append(decisions):
        os.write(told, f"{event.position} {event.hash}\n".encode())


def start_writer(location: str, number: int, draw: random.Random) -> Writer:
    """Of every two the first one's time begins with its first event, so that some get far on a machine that is busy,
    too."""
    seed, life = draw.getrandbits(32), draw.uniform(0, LONGEST_LIFE_SECONDS)
    process, reading = started(lambda told: write_until_killed(location, number, seed, told))
    return Writer(location, process, reading, life, patient=number % 2 == 0)


def start_trial(location: str, folder: Path, draw: random.Random) -> Writer:
    mark = f"{os.getpid()}-{draw.getrandbits(64):016x}"
    longest = LONGEST_TRIAL_LIFE_SECONDS if draw.random() < WHOLE_TRIALS else LONGEST_PART_SECONDS
    life = draw.uniform(0, longest)

    def write(told: int) -> None:
        append = open_ledger(parse_location(location)).append
        acknowledge(append, told, decision(Kind.PROPOSED, mark[-16:], 0))
        try_until_killed(mark, folder / mark, lambda decisions: acknowledge(append, told, *decisions))

    process, reading = started(write)
    return Writer(location, process, reading, life, mark=mark)


def killed_round(location: str, writers: int, draw: random.Random) -> list[set[tuple[int, str]]]:
    """Start the writers, kill each at a random moment; what each was told."""
    running = [start_writer(location, number, draw) for number in range(writers)]
    events = []
    for writer in sorted(running, key=lambda writer: (writer.patient, writer.life)):
        if writer.patient:
            select.select([writer.reading], [], [])
            time.sleep(writer.life)
        else:
            time.sleep(max(0.0, writer.due - time.monotonic()))
        events.append(writer.killed())
    return events


def look(location: str, acknowledged: set[tuple[int, str]], figures: Figures) -> int:
    """How many events are there; what is missing or broken goes to `figures`."""
    try:
        ledger = open_to_read(parse_location(location))
    except LedgerMissingError:
        figures.lost += len(acknowledged)
        return 0  # all were killed before the ledger was made
    there = {(row["position"], row["hash"]) for row in ledger.read_rows()}
    figures.lost += len(acknowledged - there)
    found = verify(ledger)
    if found.problem is not None:
        figures.broken.append(f"event {found.problem.position}: {found.problem.what}")
    return len(there)


class Benchmark:
    """Rounds of writers beside trials, each trial and each round on the ledger that was in use when it began."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.figures = Figures()
        self._folder = folder
        self._draw = random.Random(seed)
        self._acknowledged: dict[str, set[tuple[int, str]]] = {}
        self._trials: list[Writer] = []
        self._said = 0.0

    def run(self, kills: int, writers: int, trials: int) -> Figures:
        begun, others = time.monotonic(), kills - trials
        figures = self.figures
        try:
            while figures.kills < kills:
                while len(self._trials) < min(TRIALS_AT_ONCE, trials - figures.trials_killed):
                    self._trials.append(start_trial(self._location(), self._folder / "trials", self._draw))
                # As far with one as with the other, so that they run at the same time.
                done = figures.kills - figures.trials_killed
                if done < others and done * trials <= others * figures.trials_killed:
                    self._round(min(writers, others - done))
                for trial in [trial for trial in self._trials if trial.due <= time.monotonic()]:
                    self._trials.remove(trial)
                    self._kill_trial(trial)
                if self._trials:
                    wait = min(trial.due for trial in self._trials) - time.monotonic()
                    time.sleep(max(0.0, min(0.05, wait)))
                self._say(kills)
        finally:
            for trial in self._trials:
                trial.killed()
        for location, told in self._acknowledged.items():
            stored = look(location, told, Figures())
            figures.stored += stored
            figures.kept_unacknowledged += stored - len(told)
        figures.ledgers = len(self._acknowledged)
        figures.seconds = round(time.monotonic() - begun, 1)
        return figures

    def _location(self) -> str:
        number = self.figures.rounds // ROUNDS_PER_LEDGER
        location = str(self._folder / f"{number}" / "ledger.sqlite3")
        self._acknowledged.setdefault(location, set())
        return location

    def _round(self, writers: int) -> None:
        location = self._location()
        told = killed_round(location, writers, self._draw)
        self.figures.rounds += 1
        self.figures.killed_before_first_event += sum(not events for events in told)
        self._look(location, told)

    def _kill_trial(self, trial: Writer) -> None:
        figures = self.figures
        arms = len(marked(trial.mark, but=trial.process))
        told = trial.killed()
        gone = seconds_until_gone(trial.mark)
        figures.trials_killed += 1
        figures.killed_with_arms += arms > 0
        figures.killed_after_a_whole_trial += len(told) > 1
        if gone is None:
            figures.arms_left += 1
        else:
            figures.slowest_end_seconds = round(max(figures.slowest_end_seconds, gone), 2)
        self._look(trial.location, [told])

    def _look(self, location: str, told: list[set[tuple[int, str]]]) -> None:
        self.figures.kills += len(told)
        self.figures.acknowledged += sum(map(len, told))
        self._acknowledged[location] = self._acknowledged[location].union(*told)
        look(location, self._acknowledged[location], self.figures)

    def _say(self, kills: int) -> None:
        if time.monotonic() > self._said + SAY_SECONDS:
            self._said = time.monotonic()
            figures = self.figures
            print(
                f"{figures.kills} of {kills} killed, {figures.trials_killed} of them trials; "
                f"{figures.acknowledged} events, {figures.lost} lost, {len(figures.broken)} broken",
                file=sys.stderr,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--trials", type=int, help="how many of these amid a real trial; a tenth by default")
    parser.add_argument("--writers", type=int, default=8, help="at the same time")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    trials = arguments.kills // 10 if arguments.trials is None else arguments.trials
    with tempfile.TemporaryDirectory() as folder:
        figures = Benchmark(Path(folder), arguments.seed).run(arguments.kills, arguments.writers, trials)
    print(json.dumps(dataclasses.asdict(figures), indent=2))
    return 1 if figures.lost or figures.broken or figures.arms_left else 0


if __name__ == "__main__":
    sys.exit(main())
