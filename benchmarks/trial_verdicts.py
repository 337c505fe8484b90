"""Do trials conclude, how long do they take, and do promotions keep their promise?

    python benchmarks/trial_verdicts.py --results FILE [--targets resnet18,mixer] [--modes inference,training]
        [--repeat N] [--candidates solved,freezing] [--no-replicate] [--only-figures]

Every case is one `frx trial` with a ledger and a cache of measured times of its own, so nothing is known beforehand but
the least distance between the processors; the cache of Inductor is the machine's. A promotion is then replicated by
`examples/apply.py`, in five pairs of fresh processes. It shares no code with trials.

Targets are the zoo, the eight small programs, and `examples/convnet.py:build` ("convnet"). The candidate "solved" is
all that measured times favour, together; another is one rewrite or compiler setting alone.

Each case is a line of JSON, appended as soon as it is known. A run may be ended at any time, and is continued by the
same command. Run it on an idle machine. Exit code 1 if more than a tenth of the trials are inconclusive, or promises
are not kept: 97 % of promotions faster, the median off by at most 3 points, none by more than 15.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from small_programs import SMALL_PROGRAMS
from tabulate import tabulate
from zoo import ZOO

from frx_graph.support.cache_directory import get_cache_directory

ROOT = Path(__file__).parent.parent
TARGETS = {
    "convnet": "examples/convnet.py:build",
    **{program.__name__: f"benchmarks/small_programs.py:{program.__name__}" for program in SMALL_PROGRAMS},
    **{entry.name: f"benchmarks/zoo.py:{entry.name}" for entry in ZOO if not entry.alternates},
}
SOLVED = "solved"
MOST_INCONCLUSIVE = 0.10
FEWEST_FASTER = 0.97
MEDIAN_POINTS, MOST_POINTS = 3.0, 15.0


class Line(BaseModel):
    """What became of one trial. Ratios are times of the baseline over times of the candidate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str
    training: bool
    candidate: str
    run: int
    verdict: str
    reason: str
    seconds: float
    claimed: float | None = None
    """With the allocation of memory that the trial has measured."""
    pairs: tuple[float, ...] = ()
    replicated: tuple[float, ...] = ()
    """One ratio for each pair of fresh processes; empty if nothing was promoted."""

    @property
    def key(self) -> tuple[object, ...]:
        """Which case it is."""
        return (self.target, self.training, self.candidate, self.run)


@dataclass(frozen=True)
class Asked:
    """What is tried."""

    targets: tuple[str, ...]
    modes: tuple[str, ...]
    candidates: tuple[str, ...]
    repeat: int
    replicate: bool

    def cases(self) -> Iterator[tuple[str, bool, str, int]]:
        for run in range(self.repeat):
            for mode in self.modes:
                for candidate in self.candidates:
                    for target in self.targets:
                        yield target, mode == "training", candidate, run


def try_case(target: str, training: bool, candidate: str, run: int, *, replicate: bool) -> Line | None:
    """One trial and its replication; None where there is nothing to try."""
    options = [*(["--train"] if training else []), *([] if candidate == SOLVED else ["--candidate", candidate])]
    with tempfile.TemporaryDirectory(prefix="frx-verdicts-") as folder:
        environment = {**os.environ, "FRX_LEDGER": f"{folder}/ledger.sqlite3", "FRX_CACHE_DIR": f"{folder}/cache"}
        _copy_distances(get_cache_directory(), Path(folder) / "cache")
        command = [sys.executable, "-m", "frx_graph", "trial", TARGETS[target], "--json", "--quiet", *options]
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        seconds = time.monotonic() - began
        _copy_distances(Path(folder) / "cache", get_cache_directory())
        if done.returncode == 2:
            print(f"{target}: the trial failed", file=sys.stderr)
            return None
        document = json.loads(done.stdout)
        if not document["gates"]:
            return None
        stats = document.get("stats")
        line = Line(
            target=target,
            training=training,
            candidate=candidate,
            run=run,
            verdict=document["verdict"],
            reason=document["reason"],
            seconds=seconds,
            claimed=stats["ratio_median"] if stats else None,
            pairs=tuple(stats["pair_medians"]) if stats else (),
        )
        if line.verdict != "promote" or not replicate:
            return line
        again = [sys.executable, "examples/apply.py", TARGETS[target], "--json", *(["--train"] if training else [])]
        found = subprocess.run(again, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        ratios = json.loads(found.stdout.splitlines()[-1])["ratios"] if found.returncode == 0 else ()
        if not ratios:
            print(f"{target}: the promotion was not replicated", file=sys.stderr)
        return line.model_copy(update={"replicated": tuple(ratios)})


def _copy_distances(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in source.glob("processors-*.json"):
        shutil.copy(file, target)


def judge(lines: Sequence[Line]) -> list[str]:
    """Print the figures, and return what falls short."""
    broken = []
    rows = []
    for line in lines:
        replicated = f"{100 * (statistics.median(line.replicated) - 1):+.1f}" if line.replicated else ""
        claimed = f"{100 * (line.claimed - 1):+.1f}" if line.claimed else ""
        mode = "training" if line.training else "inference"
        rows.append([line.target, mode, line.candidate, line.verdict, f"{line.seconds:.0f}", claimed, replicated])
    print(tabulate(rows, headers=["target", "mode", "candidate", "verdict", "s", "claimed %", "replicated %"]))
    count = Counter(line.verdict for line in lines)
    open_share = count["inconclusive"] / len(lines)
    print(f"\n{len(lines)} trials: {', '.join(f'{n} {name}' for name, n in count.most_common())}")
    print(f"inconclusive: {100 * open_share:.1f} %; median {statistics.median(line.seconds for line in lines):.0f} s")
    if open_share > MOST_INCONCLUSIVE:
        broken.append(f"{100 * open_share:.1f} % are inconclusive, {100 * MOST_INCONCLUSIVE:.0f} % may be")
    kept = [line for line in lines if line.replicated and line.claimed]
    if missing := count["promote"] - len(kept):
        print(f"{missing} promotions were not replicated, and count in no figure below")
    if kept:
        gains = [statistics.median(line.replicated) for line in kept]
        points = [100 * (line.claimed - gain) for line, gain in zip(kept, gains, strict=True) if line.claimed]
        faster = sum(gain > 1 for gain in gains) / len(gains)
        middle, worst = statistics.median(points), max(points, key=abs)
        print(
            f"{len(kept)} promotions replicated: {100 * faster:.1f} % are faster; claimed minus replicated: median ",
            end="",
        )
        print(f"{middle:+.1f} points, at most {worst:+.1f}; mean of all {math.fsum(points) / len(points):+.1f}")
        if faster < FEWEST_FASTER or abs(middle) > MEDIAN_POINTS or abs(worst) > MOST_POINTS:
            broken.append("promises are not kept")
    return broken


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, metavar="FILE")
    parser.add_argument("--targets", default=",".join(TARGETS), help="names, with commas between them")
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--candidates", default=SOLVED)
    parser.add_argument("--repeat", type=int, default=1, metavar="N")
    parser.add_argument("--no-replicate", action="store_true")
    parser.add_argument("--only-figures", action="store_true")
    given = parser.parse_args(arguments)
    if unknown := set(given.targets.split(",")) - set(TARGETS):
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}; known: {', '.join(TARGETS)}")
    asked = Asked(
        tuple(given.targets.split(",")),
        tuple(given.modes.split(",")),
        tuple(given.candidates.split(",")),
        given.repeat,
        not given.no_replicate,
    )
    known = (
        [Line.model_validate_json(text) for text in given.results.read_text().splitlines()]
        if given.results.exists()
        else []
    )
    done = {line.key for line in known}
    for case in () if given.only_figures else asked.cases():
        if case in done or (found := try_case(*case, replicate=asked.replicate)) is None:
            continue
        known.append(found)
        with given.results.open("a") as file:
            file.write(found.model_dump_json() + "\n")
        gain = f" {100 * (found.claimed - 1):+.1f} %" if found.claimed else ""
        again = f", replicated {100 * (statistics.median(found.replicated) - 1):+.1f} %" if found.replicated else ""
        print(f"{found.target} {'training' if found.training else 'inference'} {found.candidate}: ", end="")
        print(f"{found.verdict}{gain}{again} in {found.seconds:.0f} s", flush=True)
    if not known:
        print("nothing was measured")
        return 1
    broken = judge(known)
    for line in broken:
        print(f"BROKEN: {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
