"""How long the solver takes for a graph of ten thousand operators, by its form and the number of labels.

    python benchmarks/solver_speed.py [--operators 10000] [--rounds 3] [--json FILE]

Every third operator is an anchor with random seconds in each label, the others have none of their own; conversions cost
random seconds, too. A chain has one reader a value; in a residual network each block's input is read twice; in a U-Net
the first half's values are read in the second half once more, in reverse. Prints the median of the rounds, each with
other numbers, whether all answers were exact, and the share of the present labels' seconds that is left. Exit code 1
where a median is above 5 s at the 10,000 operators that the bound is for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch

from frx_graph.passes.solver.problem import Given, Node, Port, Problem, Value
from frx_graph.passes.solver.solve import solve

BOUND_S = 5.0
BOUND_OPERATORS = 10_000
LABELS = (2, 5)
BLOCK = 3
"""Operators of a residual block, and between two anchors."""

Readers = Callable[[int, int], list[int]]
"""The operators that read what an operator makes, of so many."""


def chain(operator: int, operators: int) -> list[int]:
    """The next operator alone."""
    return [operator + 1] if operator + 1 < operators else []


def residual(operator: int, operators: int) -> list[int]:
    """Every block adds its input to its result."""
    skips = [operator + BLOCK] if operator % BLOCK == 0 and operator + BLOCK < operators else []
    return chain(operator, operators) + skips


def unet(operator: int, operators: int) -> list[int]:
    """What every block of the way down ends with is read at the same height on the way up."""
    other = operators - 1 - operator
    skips = [other] if operator % BLOCK == 0 and operator + 1 < other else []
    return chain(operator, operators) + skips


FORMS: dict[str, Readers] = {"chain": chain, "residual": residual, "unet": unet}


@dataclass(frozen=True)
class Row:
    """What came of one form of graph. `seconds` are those of the rounds, in order; `left` is a median."""

    form: str
    operators: int
    labels: int
    seconds: tuple[float, ...]
    exact: bool
    left: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def problem(readers: Readers, operators: int, labels: int, random: Random) -> Problem:
    """A graph with random prices, all of it in label 0 now."""
    names = range(labels)
    nodes = tuple(
        Node({label: random.expovariate(1e4) if operator % BLOCK == 0 else 0.0 for label in names}, 0)
        for operator in range(operators)
    )
    made = (
        Value(Port(operator), tuple(map(Port, readers(operator, operators))), seconds=random.expovariate(1e5))
        for operator in range(operators)
    )
    return Problem(nodes, (Value(Given(0), (Port(0),), seconds=1e-5), *made))


def measured(form: str, operators: int, labels: int, rounds: int) -> Row:
    """The row of one form, after `rounds` graphs."""
    seconds, left, exact = [], [], True
    for seed in range(rounds):
        asked = problem(FORMS[form], operators, labels, Random(seed))
        begun = time.perf_counter()
        answer = solve(asked)
        seconds.append(time.perf_counter() - begun)
        left.append(answer.seconds / asked.sum_seconds([0] * operators))
        exact = exact and answer.exact
    return Row(form, operators, labels, tuple(seconds), exact, statistics.median(left))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--operators", type=int, default=BOUND_OPERATORS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    if min(given.operators, given.rounds) < 1:
        parser.error("--operators and --rounds are at least 1")
    rows = []
    for labels in LABELS:
        for form in FORMS:
            rows.append(row := measured(form, given.operators, labels, given.rounds))
            exact = "exact" if row.exact else "not exact"
            print(f"{form:9} {labels} labels  {row.median:6.2f} s  {exact:9}  {row.left:6.1%} left", flush=True)
    if given.json:
        document = {"torch": torch.__version__, "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    slow = [row for row in rows if row.operators == BOUND_OPERATORS and row.median > BOUND_S]
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
