"""Does any input make a reader of evidence fail otherwise than by saying what is wrong with the file?

    python benchmarks/fuzz_parsers.py --parser ptx --examples 1000000 --seed 1 [--corpus FOLDER] [--keep FOLDER]

Files of our own, and those of FOLDER, are damaged (`mutations.py`) and read as `frx analyze` reads them, up to the
JSON, and every 32nd up to the text. What comes out is a whole report, or an `EvidenceError` of one line; an input that
ends in anything else, or takes longer than the limit (of processor time, by its size), is a failure, is written to
`--keep`, and can be made again from seed and number. The inputs are read in a process of its own, which is started
anew behind an input that ends it.

Exit code 1 with a failure. Another reader takes an entry in `fuzzed_formats.py`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from fuzzed_formats import PARSERS, Parser
from mutations import mutated

from frx_graph.errors import EvidenceError

LIMIT_SECONDS = 5.0
_SECONDS_A_MEGABYTE = 15.0
"""More for a larger input, as damage that repeats itself makes them: up to 10 were seen where the parser of CUDA could
make no sense of it, which is no failure while it grows with the size alone."""
_WAITING = 10.0
"""So much longer by the clock: other processes may have the processor, and who waits for ever is found as well."""
_LONGEST_SEED = 6000
_MEMORY_BYTES = 6 << 30
"""Address space for reading, beside that of the process that was forked: torch's libraries alone may take gigabytes."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_TIMERS = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
_REPORTED = 20
_TEXT_OF = 32


@dataclass
class Outcome:
    """What became of the inputs: `failures` are by what went wrong, with the numbers of the first inputs."""

    parser: str
    seed: int
    examples: int = 0
    read: int = 0
    refused: int = 0
    seconds: float = 0.0
    failures: dict[str, list[int]] = field(default_factory=dict)

    def fail(self, what: str, number: int) -> None:
        """Notes a failure."""
        if len(numbers := self.failures.setdefault(what, [])) < _REPORTED:
            numbers.append(number)


def seeds_of(parser: Parser, corpus: Path | None) -> list[bytes]:
    """What is damaged: our own files and those of the `corpus`, in pieces that are read quickly."""
    files = list(parser.own())
    if corpus is not None:
        files += [path.read_bytes() for path in sorted(corpus.rglob(f"*.{parser.suffix}"))]
    pieces = {piece for file in files for piece in (file, *parser.pieces(file)) if len(piece) <= _LONGEST_SEED}
    return sorted(pieces)


def example(seeds: Sequence[bytes], words: Sequence[bytes], seed: int, number: int) -> bytes:
    """The input of that number."""
    return mutated(seeds, words, random.Random(f"{seed}/{number}"))


def tried(parser: Parser, path: Path, *, in_full: bool) -> str:
    """`read` or `refused`, or what went wrong; the text is made only if it is read `in_full`: it takes longest."""
    try:
        document, render = parser.report(path)
        json.dumps(document, allow_nan=False)
        text = render() if in_full else ""
    except EvidenceError as error:
        said = str(error)
        return (
            "refused" if said.startswith(str(path)) and len(said.splitlines()) == 1 else f"badly said: {said[:200]!r}"
        )
    except Exception as error:  # noqa: BLE001 - which is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {str(error)[:80]}"
    return "a control character in the text" if _CONTROL.search(text) else "read"


def fuzzed(name: str, seeds: Sequence[bytes], seed: int, examples: int, limits: tuple[float, float]) -> Outcome:
    """`examples` inputs, or as many as there is time for; `limits` are the seconds of one, and of all."""
    outcome = Outcome(name, seed)
    began = time.perf_counter()
    context = multiprocessing.get_context("fork")
    counts = context.Array("q", 3, lock=False)
    failures: Any = context.SimpleQueue()
    until = time.monotonic() + limits[1]
    number = 0
    while number < examples and time.monotonic() < until:
        arguments = (name, seeds, seed, range(number, examples), limits[0], until, counts, failures)
        child = context.Process(target=_read_all, args=arguments)
        child.start()
        while child.is_alive():
            child.join(0.2)
            _drain(failures, outcome)
        _drain(failures, outcome)
        number = counts[2]
        if child.exitcode:
            outcome.fail(
                "longer than the limit" if -child.exitcode in _TIMERS.values() else f"exit {child.exitcode}", number
            )
            number += 1
    outcome.read, outcome.refused, outcome.examples = counts[0], counts[1], number
    outcome.seconds = round(time.perf_counter() - began, 1)
    return outcome


def _drain(failures: Any, outcome: Outcome) -> None:
    while not failures.empty():
        outcome.fail(*failures.get())


def _read_all(
    name: str, seeds: Sequence[bytes], seed: int, numbers: range, limit: float, until: float, counts: Any, failures: Any
) -> None:
    parser = PARSERS[name]
    # They end the process, whatever it is doing; a handler would wait for C code to come back.
    for ends in _TIMERS.values():
        signal.signal(ends, signal.SIG_DFL)
    most = psutil.Process().memory_info().vms + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    reported: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"input.{parser.suffix}"
        for number in numbers:
            counts[2] = number
            if number % 256 == 0 and time.monotonic() > until:
                return
            data = example(seeds, parser.words, seed, number)
            path.write_bytes(data)
            seconds = limit + _SECONDS_A_MEGABYTE * len(data) / 1e6
            signal.setitimer(signal.ITIMER_PROF, seconds)
            signal.setitimer(signal.ITIMER_REAL, seconds * _WAITING)
            found = tried(parser, path, in_full=number % _TEXT_OF == 0)
            for timer in _TIMERS:
                signal.setitimer(timer, 0)
            if found == "read":
                counts[0] += 1
            elif found == "refused":
                counts[1] += 1
            elif reported[found] < _REPORTED:
                reported[found] += 1
                failures.put((found, number))
        counts[2] = numbers.stop


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parser", choices=PARSERS, required=True)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, metavar="FOLDER", help="with real files, which are damaged too")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for a small input")
    parser.add_argument("--seconds", type=float, default=86400.0, help="for all of them")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write inputs that failed here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the figures to those in this file")
    given = parser.parse_args(arguments)
    one = PARSERS[given.parser]
    seeds = seeds_of(one, given.corpus)
    outcome = fuzzed(given.parser, seeds, given.seed, given.examples, (given.limit, given.seconds))
    print(
        f"{given.parser}: {outcome.examples:,} inputs of {len(seeds):,} files (seed {given.seed}),"
        f" {outcome.seconds} s: {outcome.read:,} read, {outcome.refused:,} refused,"
        f" {len(outcome.failures)} kinds of failures"
    )
    for what, numbers in outcome.failures.items():
        print(f"FAILED: {what}: inputs {', '.join(map(str, numbers))}")
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            for number in numbers[:3]:
                kept = given.keep / f"{given.parser}-{given.seed}-{number}.{one.suffix}"
                kept.write_bytes(example(seeds, one.words, given.seed, number))
    if given.json:
        before = json.loads(given.json.read_text()) if given.json.exists() else []
        given.json.write_text(json.dumps([*before, {**asdict(outcome), "seeds": len(seeds)}], indent=1) + "\n")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
