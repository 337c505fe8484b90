"""How true the advice is: predicted layout copies beside those of a real eager step, for the whole zoo.

    python benchmarks/advice_accuracy.py [NETWORK ...] [--mode inference|training|both] [--device cpu|cuda] [--verbose]
        [--json FILE]

Copies are compared by place: file, line, operator, kind, rule and direction. The copies at one place are found if the
advice claims as many copies and bytes there, within 10 %; what the advice claims at a place is confirmed if the step
shows as many copies and bytes there, within 10 %. A claim is a copy that a finding lists. Bounds, for every network:
95 % of the observed copies are found, 95 % of the claimed ones are confirmed, and every predicted copy stands in one
finding, of the rule that owns it. Exit code 1 when a bound is broken.

The watched step is checked against an unwatched one: the totals of both have to agree within 10 %, too.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor
from torch.utils import _pytree as pytree
from zoo import ZOO, zoo_entry
from zoo_entry import ZooEntry

import frx_graph
from frx_graph.advisor.observe import observe_step
from frx_graph.capture.aten_trace import run_step
from frx_graph.capture.state_snapshot import preserve_state
from frx_graph.measure.operators.copy_recorder import CopyRecorder
from frx_graph.passes.copies.copy_findings import find_owner
from frx_graph.records import Copy, Finding

TOLERANCE = 0.10
BOUND = 0.95
MODES = {"inference": (False,), "training": (True,), "both": (False, True)}


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """What has to be right about a copy for it to count as the same one."""

    file: str
    line: int
    operator: str
    kind: str
    rule: str
    phase: str


@dataclass(frozen=True, slots=True)
class Amount:
    """Copies and their traffic in bytes."""

    count: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.count + other.count, self.bytes + other.bytes)

    def agrees(self, other: Amount) -> bool:
        """Within `TOLERANCE` of `other`, which must not be nothing."""
        return (
            other.count > 0
            and abs(self.count - other.count) <= TOLERANCE * other.count
            and abs(self.bytes - other.bytes) <= TOLERANCE * other.bytes
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One place: what the step showed there and what the advice says."""

    place: Place
    observed: Amount
    claimed: Amount

    @property
    def found(self) -> bool:
        return self.claimed.agrees(self.observed)

    @property
    def confirmed(self) -> bool:
        return self.observed.agrees(self.claimed)


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over places. Shares are None where there is nothing to be right about."""

    observed: Amount
    found: Amount
    claimed: Amount
    confirmed: Amount

    @property
    def found_share(self) -> float | None:
        return self.found.count / self.observed.count if self.observed.count else None

    @property
    def confirmed_share(self) -> float | None:
        return self.confirmed.count / self.claimed.count if self.claimed.count else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One network in one mode. `unlisted` are predicted copies that do not stand in exactly one finding; `unwatched` is
    what the step copies when nothing watches its operators."""

    network: str
    train: bool
    rows: tuple[Row, ...]
    unlisted: int
    unwatched: Amount

    @property
    def title(self) -> str:
        return f"{self.network}, {'training' if self.train else 'inference'}"


def amounts(copies: Iterable[Copy]) -> Mapping[Place, Amount]:
    """Copies and bytes by place."""
    found: dict[Place, Amount] = {}
    for copy in copies:
        place = Place(copy.site.file, copy.site.line, copy.operator, copy.kind, find_owner(copy), copy.phase)
        found[place] = found.get(place, Amount()) + Amount(copy.count, copy.bytes)
    return found


def rows(observed: Iterable[Copy], claimed: Iterable[Copy]) -> tuple[Row, ...]:
    """Both sides of every place, in order."""
    seen, said = amounts(observed), amounts(claimed)
    return tuple(Row(place, seen.get(place, Amount()), said.get(place, Amount())) for place in sorted({*seen, *said}))


def score(of: Iterable[Row]) -> Score:
    """What was found and confirmed; an amount at a place counts as a whole or not at all."""
    places = tuple(of)
    return Score(
        observed=sum((row.observed for row in places), Amount()),
        found=sum((row.observed for row in places if row.found), Amount()),
        claimed=sum((row.claimed for row in places), Amount()),
        confirmed=sum((row.claimed for row in places if row.confirmed), Amount()),
    )


def unlisted(predicted: Sequence[Copy], findings: Sequence[Finding]) -> int:
    """How many predicted copies stand in no finding, or in several, or in one of a rule that does not own them."""
    listed = Counter(copy for finding in findings for copy in finding.copies if finding.rule == find_owner(copy))
    return sum(abs(amount - listed[copy]) for copy, amount in Counter(predicted).items())


def broken_bounds(comparison: Comparison) -> list[str]:
    """What is wrong with one network, in words; nothing if all bounds hold."""
    total = score(comparison.rows)
    broken = []
    if total.found_share is not None and total.found_share < BOUND:
        broken.append(f"{comparison.title}: {total.found_share:.1%} of the observed copies are found")
    if total.confirmed_share is not None and total.confirmed_share < BOUND:
        broken.append(f"{comparison.title}: {total.confirmed_share:.1%} of the claimed copies are observed")
    if comparison.unlisted:
        broken.append(f"{comparison.title}: {comparison.unlisted} predicted copies are not in exactly one finding")
    if total.observed.count and not comparison.unwatched.agrees(total.observed):
        broken.append(f"{comparison.title}: unwatched, the step makes {comparison.unwatched.count} copies")
    return broken


def compare(entry: ZooEntry, train: bool, device: str = "cpu") -> Comparison:
    """Advise on one network, run one step of it, and put the copies side by side."""
    model, args, kwargs = entry.build(train)
    model = model.to(device)
    args, kwargs = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), (args, kwargs))
    advice = frx_graph.advise(model, args, kwargs, train=train).advice
    torch._dynamo.reset()
    observed = observe_step(model, args, kwargs, train=train, inner="eager")
    claimed = [copy for finding in advice.findings for copy in finding.copies]
    return Comparison(
        network=entry.name,
        train=train,
        rows=rows(observed, claimed),
        unlisted=unlisted(advice.copies, advice.findings),
        unwatched=unwatched(lambda: run_step(model, args, kwargs, train=train)),
    )


def unwatched(step: Callable[[], object]) -> Amount:
    """The copies of one step whose operators nobody watches: the second run, as the first may do more."""
    with preserve_state(step) as state:
        step()
        state.clear_gradients()
        with (recorder := CopyRecorder()), recorder.open_region("step"):
            step()
    copies = recorder.get_copies("step")
    return Amount(len(copies), sum(copy.bytes for copy in copies))


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def line(title: str, total: Score) -> list[object]:
    return [
        title,
        total.observed.count,
        f"{total.observed.bytes / 1e6:.1f}",
        share(total.found_share),
        total.claimed.count,
        f"{total.claimed.bytes / 1e6:.1f}",
        share(total.confirmed_share),
    ]


HEADERS = ["", "observed", "MB", "found", "claimed", "MB", "confirmed"]


def print_tables(comparisons: Sequence[Comparison]) -> None:
    print(tabulate([line(c.title, score(c.rows)) for c in comparisons], HEADERS, colalign=["left"]))
    by_rule: dict[str, list[Row]] = {}
    for comparison in comparisons:
        for row in comparison.rows:
            by_rule.setdefault(row.place.rule, []).append(row)
    print()
    print(tabulate([line(rule, score(by_rule[rule])) for rule in sorted(by_rule)], HEADERS, colalign=["left"]))


def print_misses(comparison: Comparison) -> None:
    misses = [row for row in comparison.rows if not (row.found and row.confirmed)]
    for row in misses:
        place = row.place
        print(
            f"  {place.rule} {place.file}:{place.line} {place.operator} {place.kind} {place.phase}: "
            f"observed {row.observed.count} ({row.observed.bytes:,} bytes), "
            f"claimed {row.claimed.count} ({row.claimed.bytes:,} bytes)"
        )


def document(comparisons: Sequence[Comparison], broken: Sequence[str]) -> dict[str, object]:
    """All numbers, for machines."""
    return {
        "torch": torch.__version__,
        "networks": [
            {
                "network": c.network,
                "train": c.train,
                **asdict(score(c.rows)),
                "found_share": score(c.rows).found_share,
                "confirmed_share": score(c.rows).confirmed_share,
                "unlisted": c.unlisted,
                "unwatched": asdict(c.unwatched),
                "misses": [asdict(row) for row in c.rows if not (row.found and row.confirmed)],
            }
            for c in comparisons
        ],
        "broken": list(broken),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="names from the zoo; all if none is given")
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--verbose", action="store_true", help="list every place where the two sides disagree")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        entries = [zoo_entry(name) for name in options.networks] or list(ZOO)
    except KeyError as error:
        parser.error(str(error.args[0]))

    comparisons = []
    for entry in entries:
        for train in MODES[options.mode]:
            comparison = compare(entry, train, options.device)
            gc.collect()
            comparisons.append(comparison)
            total = score(comparison.rows)
            print(
                f"{comparison.title}: found {share(total.found_share)}, confirmed {share(total.confirmed_share)}, "
                f"unwatched {comparison.unwatched.count} copies of {comparison.unwatched.bytes / 1e6:.1f} MB",
                file=sys.stderr,
            )
            if options.verbose:
                print_misses(comparison)
    broken = [text for comparison in comparisons for text in broken_bounds(comparison)]
    print_tables(comparisons)
    if broken:
        print("\n" + "\n".join(broken))
    if options.json is not None:
        options.json.write_text(json.dumps(document(comparisons, broken), indent=1) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
