"""Are predicted savings right? Predicted against measured gains of every candidate of the zoo, and their calibration.

    python benchmarks/prediction_accuracy.py --results FILE [--models resnet18,unet_plain] [--inner inductor,eager]
        [--modes inference,training] [--batch 1] [--policy FILE] [--limit S] [--ignore-load] [--only-figures
        [--machine NAME | --shipped]] [--fit]

Each network is asked for its candidates: every rewrite alone, all together, and the inner compilers that have a price.
Each candidate with a prediction is then measured against the network without frx, by a short trial in fresh processes.
A candidate that fails at a gate has no measured gain.

Every candidate is one line of JSON, appended to the results as soon as it is known. A run may be ended at any time, and
is continued by the same command: candidates with a line are left out. Lines of other machines do not count. On a busy
machine nothing is measured, and no line is written. With `--ignore-load` there is one, which no other run reads.

The figures are those of networks that were left out of the fit, one after the other: rank correlation, mean relative
error, the share within the 80 % interval, and predicted against measured classes. With `--fit` the calibration is
written to `rules/predicted_gain.yaml`, which the package reads. With `--shipped` the figures are those of the
package's calibration, on the lines of all machines. Exit code 1 if the goals of accuracy are not reached.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from prediction_fit import Point, calibrate, judge, make_point, predict_all, print_accuracy
from pydantic import BaseModel, ConfigDict, ValidationError
from zoo import ZOO, zoo_entry

from frx_graph.autopilot.proposals import (
    apply_choice,
    find_choices,
    find_known_portion,
    group_by_portion,
    list_rewrites,
    predict_step,
    propose_rewrites,
)
from frx_graph.compiler.plans import ALL_REWRITES, filter_by_risk
from frx_graph.errors import FrxError
from frx_graph.measure.machine.measurement_environment import get_measurement_environment
from frx_graph.passes.inner_choice import NAME as INNER_CHOICE
from frx_graph.records import Candidate
from frx_graph.rules.predicted_gain import Calibration, load_calibration
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import Load, MadeGraph, TargetWorkload
from frx_graph.trials.executor import run_trial
from frx_graph.trials.policy import TrialPolicy, read_policy
from frx_graph.trials.process_pairs import Programs
from frx_graph.trials.trial_run import TrialRun
from frx_graph.trials.verdict import Outcome

ROOT = Path(__file__).parent.parent
CALIBRATION = ROOT / "rules" / "predicted_gain.yaml"
LIMIT_SECONDS = 900.0
"""For one candidate, and for asking for candidates once."""
POLICY = TrialPolicy(process_pairs=3, quads_per_pair=4, extra_process_pairs=0, memory_headroom=10.0)
"""A short trial: the ratio counts, not the verdict. Candidates that need more memory are measured, too."""
TOGETHER = "all rewrites"


class Row(BaseModel):
    """One candidate of one network, or with `name` None, that all candidates of the network have a row."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: str
    train: bool
    batch: int
    inner: str
    machine: str
    name: str | None = None
    rewrites: tuple[str, ...] = ()
    """The rewrites and inner choices that it makes."""
    predicted_seconds: float | None = None
    run_seconds: float | None = None
    outcome: str | None = None
    ratio: float | None = None
    low: float | None = None
    pairs: tuple[float, ...] = ()
    """The median of each pair of processes."""
    quads: int = 0
    reason: str = ""
    ignored_load: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """The same for the same candidate on the same machine."""
        return (self.network, self.train, self.batch, self.inner, self.machine, self.name, self.ignored_load)

    @property
    def known(self) -> bool:
        """False if another run may measure what this one could not."""
        return self.ratio is not None or self.outcome != Outcome.INCONCLUSIVE.value

    @property
    def point(self) -> Point | None:
        """What the fit reads; None if the prediction or the gain is unknown."""
        return make_point(self.network, self.predicted_seconds, self.run_seconds, self.ratio)


@dataclass(frozen=True)
class How:
    """How candidates are measured: by this rule, on this machine, beside other programs or not."""

    policy: TrialPolicy
    machine: str
    ignore_load: bool = False


@dataclass(frozen=True)
class Case:
    """One network, as it is to be run."""

    network: str
    train: bool
    batch: int
    inner: str

    @property
    def title(self) -> str:
        return f"{self.network}, {'training' if self.train else 'inference'}, batch {self.batch}, {self.inner}"

    def load(self, seed: int) -> Load:
        """The network without frx."""
        workload = TargetWorkload(f"{ROOT / 'benchmarks' / 'zoo.py'}:{self.network}", shape=(("batch", self.batch),))
        return Load(workload, self.train, self.inner, seed)

    def row(self, how: How) -> Row:
        return Row(
            network=self.network,
            train=self.train,
            batch=self.batch,
            inner=self.inner,
            machine=how.machine,
            ignored_load=how.ignore_load,
        )


@dataclass(frozen=True)
class Proposal:
    """One candidate: its name, and the plan of each graph."""

    name: str
    graphs: tuple[MadeGraph, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(dict.fromkeys(one for graph in self.graphs for one in graph.applied))

    @property
    def rewrites(self) -> tuple[str, ...]:
        """The names of what it makes; rewrites for another inner compiler belong to that."""
        chosen = {one.choices[0] for one in self.candidates if one.rewrite == INNER_CHOICE}
        return tuple(sorted(chosen or {one.rewrite for one in self.candidates}))


def list_cases(given: argparse.Namespace) -> list[Case]:
    """Return what is to be run, cheap cases first. Raises `KeyError` for a network that does not exist."""
    entries = [zoo_entry(name) for name in given.models] if given.models else list(ZOO)
    return [
        Case(entry.name, mode == "training", entry.train_batch if mode == "training" else given.batch, inner)
        for mode in given.modes
        for inner in given.inner
        for entry in entries
    ]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of the file; a line that was cut off is left out."""
    rows: list[Row] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(Row.model_validate_json(line))
        except ValidationError:
            continue
    return rows


def append_row(path: Path, row: Row) -> None:
    """Append a line, on a line of its own even if the last one was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(row.model_dump_json().encode() + b"\n")


def propose(case: Case, policy: TrialPolicy) -> Iterator[Proposal]:
    """Yield the candidates of a network. Raises `TrialError` if it does not run."""
    base = case.load(policy.seed)

    def ask(choice: tuple[Candidate, ...], rewrites: Sequence[str]) -> tuple[MadeGraph, ...]:
        return propose_rewrites(replace(base, candidates=choice), rewrites, policy.time_budget_seconds)

    rewrites = filter_by_risk(ALL_REWRITES, policy.risk)
    graphs = ask((), rewrites)
    portions = list(group_by_portion([one for graph in graphs for one in graph.applied]))
    for portion in portions:
        known = [find_known_portion(graph.applied, portion) for graph in graphs]
        if None in known:
            alone = ask((), list_rewrites(portion))
        else:
            alone = tuple(replace(graph, applied=own or ()) for graph, own in zip(graphs, known, strict=True))
        yield Proposal(portion, tuple(graph for graph in alone if graph.applied))
    if len(portions) > 1:
        yield Proposal(TOGETHER, tuple(graph for graph in graphs if graph.applied))
    for name, choice in find_choices(graphs, policy.risk).items():
        if choice.predicted_seconds is not None or name == "eager":
            yield Proposal(name, apply_choice(choice, graphs, rewrites, ask))


def measure(case: Case, proposal: Proposal, how: How) -> Row:
    """Return the row of a candidate, measured if it has a prediction."""
    predicted, run_seconds = predict_step(proposal.graphs)
    row = case.row(how).model_copy(
        update={
            "name": proposal.name,
            "rewrites": proposal.rewrites,
            "predicted_seconds": predicted,
            "run_seconds": run_seconds,
        }
    )
    if run_seconds is None:
        busy = {
            "outcome": Outcome.INCONCLUSIVE.value,
            "reason": "other programs disturbed the times that prices rest on",
        }
        return row.model_copy(update=busy)
    if predicted is None:
        return row.model_copy(update={"reason": "there is no prediction"})
    base = case.load(how.policy.seed)
    programs = Programs(base, replace(base, candidates=proposal.candidates))
    try:
        found = run_trial(programs, how.policy, start_arm, ignore_load=how.ignore_load)
    except FrxError as error:
        return row.model_copy(update={"reason": str(error)})
    return row.model_copy(update=_describe_trial(found))


def _describe_trial(found: TrialRun) -> dict[str, object]:
    known = found.verdict.statistics
    figures: dict[str, object] = {"outcome": found.verdict.outcome.value, "reason": found.verdict.reason}
    if known is not None:
        figures |= {"ratio": known.ratio_median, "low": known.ci_low, "pairs": known.pair_medians, "quads": known.quads}
    return figures


def run(cases: Iterable[Case], path: Path, how: How) -> None:
    """Measure what has no row yet."""
    done = {row.key for row in read_rows(path)}
    for case in cases:
        complete = case.row(how)
        unknown = False
        if complete.key in done:
            continue
        _note(f"{case.title}: asking for candidates")
        try:
            for proposal in propose(case, how.policy):
                if complete.model_copy(update={"name": proposal.name}).key in done:
                    continue
                _note(f"{case.title}: {proposal.name}")
                row = measure(case, proposal, how)
                _note(f"    predicted {_percent(row)}, measured ratio {row.ratio}, {row.reason}")
                if row.known:
                    append_row(path, row)
                else:
                    unknown = True
        except FrxError as error:
            # Asked again by the next run: the time may have been too short.
            _note(f"{case.title}: {error}")
            continue
        if not unknown:
            append_row(path, complete)


def _percent(row: Row) -> str:
    if row.predicted_seconds is None or not row.run_seconds:
        return "nothing"
    return f"{row.predicted_seconds / row.run_seconds:.1%}"


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write_calibration(calibration: Calibration, path: Path = CALIBRATION) -> None:
    """Write the calibration that the package reads."""
    about = "# Fitted by `python benchmarks/prediction_accuracy.py --fit`.\n"
    if not calibration.reached:
        about += "# Provisional: the goals of accuracy are not reached, so reports show classes.\n"
    path.write_text(about + yaml.safe_dump(calibration.model_dump(), sort_keys=False), encoding="utf-8")


def print_rows(rows: Iterable[Row]) -> None:
    """Print each candidate that has a point."""
    for row in rows:
        if (point := row.point) is not None:
            mode = "training" if row.train else "inference"
            print(
                f"{row.network:<20} {mode:<9} {row.inner:<8} {row.name or '':<26} predicted "
                f"{point.predicted_seconds / point.run_seconds:>7.1%} measured {point.share:>7.1%}"
            )
    print()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the figures, and fit."""

    def split(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--models", type=split)
    parser.add_argument("--inner", type=split, default=["inductor", "eager"])
    parser.add_argument("--modes", type=split, default=["inference", "training"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS)
    parser.add_argument("--ignore-load", action="store_true")
    parser.add_argument("--only-figures", action="store_true")
    parser.add_argument("--machine", help="whose lines are read, if not this machine's")
    parser.add_argument("--shipped", action="store_true", help="judge the package's calibration, on all machines")
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args(arguments)
    if (given.machine is not None or given.shipped) and not given.only_figures:
        parser.error("--machine and --shipped need --only-figures: what is measured is of this machine")
    if given.shipped and given.fit:
        parser.error("--shipped judges the calibration, and --fit replaces it: give one of them")
    try:
        policy = POLICY if given.policy is None else read_policy(given.policy)
        cases = list_cases(given)
    except (KeyError, FrxError) as error:
        parser.error(str(error.args[0]))
    how = How(
        policy.model_copy(update={"time_budget_seconds": given.limit}),
        given.machine or get_measurement_environment("cpu").fingerprint,
        given.ignore_load,
    )
    if not given.only_figures:
        run(cases, given.results, how)
    rows = [
        row
        for row in read_rows(given.results)
        if row.ignored_load == how.ignore_load and (given.shipped or row.machine == how.machine)
    ]
    points = [point for row in rows if (point := row.point) is not None]
    print_rows(rows)
    if given.shipped:
        accuracy = judge(predict_all(points, load_calibration()))
        print_accuracy(accuracy)
        return 0 if accuracy.reached else 1
    calibration, accuracy = calibrate(points)
    print_accuracy(accuracy)
    if given.fit:
        write_calibration(calibration.model_copy(update={"results": given.results.name, "machine": how.machine}))
    return 0 if accuracy.reached else 1


if __name__ == "__main__":
    sys.exit(main())
