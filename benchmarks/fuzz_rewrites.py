"""Random programs, rewritten and compared with themselves: the long run.

    python benchmarks/fuzz_rewrites.py [--examples 10000]
                                       [--inner eager|aot_eager|inductor|"eager frozen"|"eager stored"|"eager chosen"]
                                       [--plan all|solved] [--seed 0] [--max-lines 10] [--show 5] [--json FILE]

Prints how many programs stayed the same (rewritten, refused, or with nothing to rewrite), how many the inner compiler
alone fails on or gets wrong, every reason for which something was refused, and for each kind of fault the smallest
program that shows it, as Python source. Exit code 1 if anything is wrong, if not one of many was rewritten, or if the
run was ended early.

Programs are numbered: the same `--seed` makes the same ones. A new process is started every few hundred programs. If
one dies, that counts, and costs one program. Faults are printed when they are found, and again at the end. Ctrl-C and
SIGTERM end the run early, with the findings so far.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from random_program import RandomProgram
from random_programs import random_program
from rewrite_oracle import ARMS, Outcome, Verdict, check_program, general_reasons
from smallest_program import smallest

PER_PROCESS = 250
MANY = 100
"""Of as many programs more than half are rewritten."""
PROGRESS_SECONDS = 10.0


@dataclass
class Summary:
    """What became of all programs. `faults` maps what is wrong, in words, to the seeds that show it; `deaths` are the
    seeds that a process ended on."""

    examples: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    applied: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    baseline: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[int]] = field(default_factory=dict)
    deaths: list[int] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.faults or self.deaths) or self.says_nothing

    @property
    def says_nothing(self) -> bool:
        """True where of so many programs not one was rewritten: then none can have been found wrong."""
        return self.examples >= MANY and not self.applied

    def note(self, seed: int, verdict: Verdict) -> None:
        self.examples += 1
        self.outcomes[verdict.outcome.value] += 1
        self.applied += verdict.applied
        self.refusals += general_reasons(verdict.refusals)
        if verdict.outcome is Outcome.WRONG:
            self.faults.setdefault(kind_of_fault(verdict), []).append(seed)
        elif verdict.outcome is Outcome.BASELINE:
            self.baseline[kind_of_fault(verdict)] += 1

    def document(self) -> dict[str, Any]:
        return {
            "examples": self.examples,
            "outcomes": dict(self.outcomes),
            "applied": dict(self.applied),
            "refusals": dict(self.refusals.most_common()),
            "baseline": dict(self.baseline.most_common()),
            "faults": self.faults,
            "deaths": self.deaths,
        }


def kind_of_fault(verdict: Verdict) -> str:
    """The first problem, without the numbers that tell two examples of one fault apart."""
    problem = verdict.problems[0]
    if problem == "raises":
        problem = verdict.problems[-1]
    return "".join("#" if letter.isdigit() else letter for letter in problem.splitlines()[0][:120])


def reproducer(program: RandomProgram, inner: str, plan: str) -> RandomProgram:
    """The smallest program with the same kind of fault."""
    wanted = check_program(program, inner, plan=plan)
    if wanted.outcome is not Outcome.WRONG:
        return program
    kind = kind_of_fault(wanted)[:24]

    def fails(candidate: RandomProgram) -> bool:
        found = check_program(candidate, inner, plan=plan)
        return found.outcome is Outcome.WRONG and kind_of_fault(found)[:24] == kind

    return smallest(program, fails)


def worker(given: argparse.Namespace) -> None:
    """Checks programs and says what became of each, one line of JSON before and one after it."""
    # Ctrl-C reaches the whole process group: the run ends its worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for seed in range(given.seed, given.seed + given.examples):
        print(json.dumps({"seed": seed}), flush=True)
        verdict = check_program(random_program(seed, given.max_lines), given.inner, plan=given.plan)
        line = {
            "outcome": verdict.outcome.value,
            "problems": list(verdict.problems),
            "refusals": dict(verdict.refusals),
            "applied": dict(verdict.applied),
        }
        print(json.dumps(line), flush=True)


def run(given: argparse.Namespace, summary: Summary) -> None:
    """Adds all programs to `summary`, in processes one after the other, with a line of progress and one for each that
    is wrong."""
    started = said = time.monotonic()
    following, last = given.seed, given.seed + given.examples
    while following < last:
        for seed, verdict in _in_process(given, following, min(PER_PROCESS, last - following)):
            following = seed + 1
            if verdict is None:
                summary.deaths.append(seed)
                print(f"DIED on seed {seed}", flush=True)
            else:
                summary.note(seed, verdict)
                if verdict.outcome is Outcome.WRONG:
                    print(f"WRONG: seed {seed}: {kind_of_fault(verdict)}", flush=True)
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                rate = (seed + 1 - given.seed) / (said - started)
                print(
                    f"{seed + 1 - given.seed} of {given.examples}, {rate:.1f} a second: {_counts(summary)}", flush=True
                )


def _in_process(given: argparse.Namespace, first: int, count: int) -> Iterator[tuple[int, Verdict | None]]:
    command = [sys.executable, __file__, "--worker", "--inner", given.inner, "--plan", given.plan]
    command += ["--seed", str(first), "--examples", str(count), "--max-lines", str(given.max_lines)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        begun: int | None = None
        try:
            for line in process.stdout:
                # Compilers print, too.
                if not line.startswith("{"):
                    continue
                said = json.loads(line)
                if "seed" in said:
                    begun = said["seed"]
                    continue
                assert begun is not None
                problems = tuple(said["problems"])
                outcome, refusals = Outcome(said["outcome"]), Counter(said["refusals"])
                yield begun, Verdict(outcome, problems, refusals, Counter(said["applied"]))
                begun = None
        except BaseException:
            process.kill()
            raise
    if begun is not None:
        yield begun, None
    elif process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")


def _counts(summary: Summary) -> str:
    found = ", ".join(f"{count} {name}" for name, count in sorted(summary.outcomes.items()))
    return f"{found}, {len(summary.deaths)} died"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Random programs, rewritten and compared with themselves.")
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--inner", choices=ARMS, default="eager")
    parser.add_argument("--plan", choices=("all", "solved"), default="all")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--max-lines", type=int, default=10)
    parser.add_argument("--show", type=int, default=5, help="kinds of faults to cut down to a reproducer")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        worker(given)
        return 0
    # `timeout` and schedulers end a run with SIGTERM.
    handled = signal.signal(signal.SIGTERM, signal.default_int_handler)
    summary = Summary()
    complete = False
    try:
        run(given, summary)
        complete = True
    except KeyboardInterrupt:
        print("ended early")
    finally:
        signal.signal(signal.SIGTERM, handled)
    print(f"{summary.examples} programs: {_counts(summary)}")
    for title, counted in (("applied", summary.applied), ("refused", summary.refusals), ("baseline", summary.baseline)):
        for text, count in counted.most_common():
            print(f"  {title} {count:6d}  {text}")
    if given.json:
        given.json.write_text(json.dumps(summary.document(), indent=2) + "\n")
    for text, seeds in list(summary.faults.items())[: given.show]:
        print(f"\nWRONG: {text}, seeds {seeds[:10]}")
        print(reproducer(random_program(seeds[0], given.max_lines), given.inner, given.plan).source)
    for seed in summary.deaths:
        print(f"\nDIED on seed {seed}")
    if summary.says_nothing:
        print("\nNot one program was rewritten")
    return 0 if complete and not summary.failed else 1


if __name__ == "__main__":
    # What torch logs of programs that it cannot compile is counted, not shown.
    logging.disable(logging.ERROR)
    sys.exit(main())
