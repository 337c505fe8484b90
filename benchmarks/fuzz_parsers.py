"""Does any input make a reader of evidence fail otherwise than by saying what is wrong with the file?

    python benchmarks/fuzz_parsers.py --parser ptx --examples 1000000 --seed 1 [--corpus FOLDER] [--keep FOLDER]

Files of our own, and those of FOLDER, are damaged (`mutations.py`) and read as `frx analyze` reads them, up to the
JSON, and every 32nd up to the text. What comes out is a whole report, or an `EvidenceError` of one line; an input that
ends in anything else, or takes longer than the limit, is a failure, is written to `--keep`, and can be made again from
seed and number. The inputs are read in a process of its own, which is started anew behind an input that ends it.

Exit code 1 with a failure. Another reader takes an entry in PARSERS.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mutations import mutated
from ncu_exports import MEMORY, OCCUPANCY, RAW, SOL, Launch, long_export, metric, wide_export

from frx_graph.errors import EvidenceError
from frx_graph.evidence.ptx.parsing import read_ptx
from frx_graph.kernel_advice import analyze_ncu
from frx_graph.passes.kernels.ptx_analysis import analyse_ptx
from frx_graph.reports import kernel_document, ptx_document
from frx_graph.reports.kernel_report import render_kernels
from frx_graph.reports.ptx_report import render_ptx

LIMIT_SECONDS = 5.0
_DATA = Path(__file__).parent.parent / "tests" / "data"
_LONGEST_SEED = 6000
_MEMORY_BYTES = 6 << 30
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_REPORTED = 20
_TEXT_OF = 32


Report = tuple[Mapping[str, Any], Callable[[], str]]


@dataclass(frozen=True)
class Parser:
    """`report` reads a file, and gives its JSON and what makes its text; `pieces` gives parts of a file that are
    read for themselves, `words` are what its format is made of."""

    report: Callable[[Path], Report]
    own: Callable[[], Iterator[bytes]]
    pieces: Callable[[bytes], Iterator[bytes]]
    words: tuple[bytes, ...]
    suffix: str


def _ptx_report(path: Path) -> Report:
    # The assembler is not asked: what it makes of damaged files is its own affair.
    module = read_ptx(path)
    document = ptx_document.ptx_document(module, analyse_ptx(module, {}), "not asked")
    return ptx_document.as_json(document), lambda: render_ptx(document.result, top=3, width=100, color=False)


def _ptx_pieces(data: bytes) -> Iterator[bytes]:
    """Each function behind the file's header."""
    begins = [found.start() for found in re.finditer(rb"^[ \t]*(?:\.\w+\s+)*\.(?:entry|func)\b", data, re.MULTILINE)]
    for begin, end in zip(begins, (*begins[1:], len(data)), strict=False):
        yield data[: min(begins[0], 2000)] + data[begin:end]


def _ncu_report(path: Path) -> Report:
    document = kernel_document.ncu_document(*analyze_ncu(path))
    return kernel_document.as_json(document), lambda: render_kernels(document.result, top=3, width=100, color=False)


def _ncu_exports() -> Iterator[bytes]:
    launches = [Launch(number=number, kernel=f"void kernel<{number}, float>(float *)") for number in range(3)]
    rows = [
        metric(launch, section, name, unit, value)
        for launch in launches
        for section, name, unit, value in (
            (SOL, "Duration", "us", "6.75"),
            (SOL, "Compute (SM) Throughput", "%", "9.15"),
            (SOL, "Memory Throughput", "%", "79.66"),
            (MEMORY, "Memory Throughput", "Gbyte/s", "1,345.14"),
            (MEMORY, "L2 Hit Rate", "%", "100.39"),
            (OCCUPANCY, "Block Limit Registers", "block", "2"),
            (OCCUPANCY, "Achieved Occupancy", "%", "n/a"),
            (RAW, "dram__bytes_read.sum", "Mbyte", "2.33"),
        )
    ]
    yield long_export(*rows).encode()
    yield (b"==PROF== Connected to process 1\nhello, world\n" + long_export(*rows, rules=True, end="\r\n").encode())
    names = [
        "gpu__time_duration.sum",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "launch__registers_per_thread",
    ]
    names += ["sm__throughput.avg.pct_of_peak_sustained_elapsed", "launch__block_size"]
    values = ["12.3", "88.1", "32", "45.6", "256"]
    yield wide_export(names, ["ns", "%", "register/thread", "%", ""], *((one, values) for one in launches)).encode()


def _ncu_pieces(data: bytes) -> Iterator[bytes]:
    """The header with rows behind it."""
    lines = data.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if b'"ID"' in line), 0)
    for begin in range(first + 1, len(lines), 20):
        yield b"".join((*lines[: first + 1], *lines[begin : begin + 20]))


PARSERS: Mapping[str, Parser] = {
    "ptx": Parser(
        _ptx_report,
        lambda: (path.read_bytes() for path in sorted((_DATA / "ptx").glob("*.ptx"))),
        _ptx_pieces,
        tuple(
            b"""{ } ; : :: ( ) [ ] < > , @ ! " /* */ // # .entry .func .visible .extern .weak .version .target
            .reg .local .shared .param .align .b8 .b64 .pred .loc .file .section .pragma .branchtargets .callprototype
            .alias .maxntid .attribute bra brx.idx call ret exit mma.sync wmma wgmma tcgen05 cp.async.bulk ld. st. atom
            %r<9> $L__BB0_1: @%p1 0f3F800000 0x inlined_at""".split()
        ),
        "ptx",
    ),
    "ncu": Parser(
        _ncu_report,
        _ncu_exports,
        _ncu_pieces,
        (
            *b'"ID" "Kernel Name" "Metric Name" "Metric Unit" "Metric Value" "," " , ; "" \n ==PROF== nan n/a'.split(
                b" "
            ),
            *b"% us ns msecond byte Kbyte Gbyte/s furlong register/thread cycle/nsecond Ghz 1,5 1.234,5".split(),
            b'"Memory Throughput"',
            b"(1, 1, 1)",
        ),
        "csv",
    ),
}


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
                "longer than the limit" if child.exitcode == -signal.SIGALRM else f"exit {child.exitcode}", number
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
    # The alarm ends the process, whatever it is doing; a handler would wait for C code to come back.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    reported: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"input.{parser.suffix}"
        for number in numbers:
            counts[2] = number
            if number % 256 == 0 and time.monotonic() > until:
                return
            path.write_bytes(example(seeds, parser.words, seed, number))
            signal.setitimer(signal.ITIMER_REAL, limit)
            found = tried(parser, path, in_full=number % _TEXT_OF == 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
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
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for one input")
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
