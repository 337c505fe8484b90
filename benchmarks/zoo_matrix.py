"""The whole zoo with every rewrite forced on, in every way to run it: is each network still the same network?

    python benchmarks/zoo_matrix.py [--entries resnet18,unet_plain] [--inners eager,aot_eager,inductor]
        [--modes inference,training] [--dtypes fp32,bf16,autocast] [--dynamic static,dynamic] [--plan all|solved]
        [--device cpu|cuda] [--budget-seconds S] [--json FILE [--retry-died]]

Each case runs two steps and is compared with plain eager (`zoo_matrix_case.py`): values and gradients by torch's oracle
with a double-precision reference, buffers, strides and shared memory exactly, and no more graphs or graph breaks than
the inner compiler alone has. Prints the cases that are wrong, and every reason for a refusal with its count. Exit code
1 if anything is wrong.

`--json` is written after every case and read at the start: what is in it is not run again, so a run that was ended is
continued by the same command. The case that a process died on is in it, too, as one that died; `--retry-died` runs it
again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rewrite_oracle import Outcome, Verdict, general_reasons
from versus_case import Mode
from zoo import ZOO, zoo_entry
from zoo_matrix_case import INNERS, PRECISIONS, MatrixCase, Reference, Shapes, check

from frx_graph.support.atomic_file import write_atomically

AXES = {"modes": tuple(Mode), "dtypes": PRECISIONS, "dynamic": tuple(Shapes), "inners": INNERS}
DIED = "died"
"""The outcome of a case that was begun and never ended."""


@dataclass(frozen=True)
class Result:
    """What became of one case; `refusals` and `applied` are counted, reasons without names and numbers."""

    title: str
    outcome: str
    problems: tuple[str, ...] = ()
    applied: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def cases(entries: Sequence[str], axes: dict[str, Sequence[str]], device: str = "cpu") -> Iterator[MatrixCase]:
    """Every combination, those that share their reference one after the other. Raises `KeyError` for an unknown entry
    and `ValueError` for an unknown value of an axis."""
    for axis, values in axes.items():
        if unknown := set(values) - set(AXES[axis]):
            raise ValueError(f"no {axis} {', '.join(sorted(unknown))}; there are {', '.join(AXES[axis])}")
    for name in entries:
        entry = zoo_entry(name)
        for mode, precision, shapes, inner in itertools.product(*(axes[axis] for axis in AXES)):
            yield MatrixCase(entry, inner, Mode(mode), precision, Shapes(shapes), device)


class Checker:
    """Checks one case after the other, and computes a reference again only where the next case needs another."""

    def __init__(self, plan: str) -> None:
        self._plan = plan
        self._key: object = None
        self._reference: Reference | None = None

    def __call__(self, case: MatrixCase) -> Verdict:
        """The verdict; a case that eager itself cannot run is `EAGER`."""
        key = (case.entry.name, case.mode, case.precision, case.shapes)
        if self._reference is None or self._key != key:
            try:
                self._reference, self._key = Reference.of(case), key
            # What eager says of a network, in a precision that it may not have, is not ours.
            except Exception as error:  # noqa: BLE001
                self._reference = None
                return Verdict(Outcome.EAGER, (f"{type(error).__name__}: {error}",))
        return check(case, self._reference, self._plan)


def run(
    planned: Sequence[MatrixCase],
    checked: Callable[[MatrixCase], Verdict],
    known: dict[str, Result],
    report: Callable[[dict[str, Result]], None],
    budget_seconds: float = float("inf"),
    now: Callable[[], float] = time.monotonic,
) -> tuple[dict[str, Result], list[str]]:
    """Check what is not `known`, until the budget is spent: all results by title, and the titles of what was left out.
    `report` is given them before a case, where that case counts as one that died, and after it."""
    started, results = now(), dict(known)
    left_out: list[str] = []
    for case in planned:
        if case.title in results:
            continue
        begun = now()
        if begun - started >= budget_seconds:
            left_out.append(case.title)
            continue
        report({**results, case.title: Result(case.title, DIED)})
        verdict = checked(case)
        results[case.title] = Result(
            case.title,
            verdict.outcome.value,
            verdict.problems,
            dict(verdict.applied),
            dict(general_reasons(verdict.refusals)),
            round(now() - begun, 1),
        )
        report(results)
    return results, left_out


def failed(results: dict[str, Result]) -> list[Result]:
    """The cases that are wrong, and those that ended the process."""
    return [result for result in results.values() if result.outcome in (Outcome.WRONG, DIED)]


def read(path: Path | None) -> dict[str, Result]:
    """The results in a file that was written before, by title; none where there is no file."""
    if path is None or not path.exists():
        return {}
    found = [Result(**{**line, "problems": tuple(line["problems"])}) for line in json.loads(path.read_text())["cases"]]
    return {result.title: result for result in found}


def write(path: Path | None, results: dict[str, Result]) -> None:
    if path is not None:
        document = {"torch": torch.__version__, "cases": [asdict(result) for result in results.values()]}
        write_atomically(path, json.dumps(document, indent=1) + "\n")


def print_results(results: dict[str, Result], left_out: Sequence[str]) -> None:
    outcomes = Counter(result.outcome for result in results.values())
    print(f"{len(results)} cases: {', '.join(f'{count} {name}' for name, count in sorted(outcomes.items()))}")
    if left_out:
        print(f"  left out {len(left_out)} for lack of time")
    refusals: Counter[str] = Counter()
    for result in results.values():
        refusals.update(result.refusals)
    for reason, count in refusals.most_common():
        print(f"  refused {count:5d}  {reason}")
    for result in results.values():
        if result.outcome in (Outcome.BASELINE, Outcome.EAGER):
            print(f"  {result.outcome}  {result.title}: {'; '.join(result.problems)[:200]}")
    for result in failed(results):
        print(f"WRONG: {result.title}: {result.outcome}: {'; '.join(result.problems)}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--entries", type=_names, help="names from the zoo; all if not given")
    for axis, values in AXES.items():
        parser.add_argument(f"--{axis}", type=_names, default=values, help=f"default: {','.join(values)}")
    parser.add_argument("--plan", choices=("all", "solved"), default="all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"), help="no case is begun after that")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results, written after every case and read first")
    parser.add_argument("--retry-died", action="store_true", help="run cases again on which a process died")
    given = parser.parse_args(arguments)
    try:
        entries = given.entries or [entry.name for entry in ZOO]
        planned = list(cases(entries, {axis: getattr(given, axis) for axis in AXES}, given.device))
    except (KeyError, ValueError) as error:
        parser.error(str(error.args[0]))

    checker = Checker(given.plan)

    def checked(case: MatrixCase) -> Verdict:
        verdict = checker(case)
        print(f"{case.title}: {verdict.outcome} {'; '.join(verdict.problems)[:300]}", file=sys.stderr, flush=True)
        return verdict

    known = read(given.json)
    if given.retry_died:
        known = {title: result for title, result in known.items() if result.outcome != DIED}
    results, left_out = run(planned, checked, known, lambda now: write(given.json, now), given.budget_seconds)
    print_results(results, left_out)
    return 1 if failed(results) else 0


if __name__ == "__main__":
    # What torch logs of programs that it cannot compile is counted, not shown.
    logging.disable(logging.ERROR)
    sys.exit(main())
