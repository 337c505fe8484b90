"""Trials of a program against itself, on this machine, in real processes: none may be promoted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import Load, TargetWorkload
from frx_graph.trials.executor import run_trial
from frx_graph.trials.policy import TrialPolicy
from frx_graph.trials.process_pairs import Programs
from frx_graph.trials.protocol import make_protocol
from frx_graph.trials.verdict import Outcome

ROOT = Path(__file__).parent.parent
PROGRAMS = (
    ("examples/convnet.py:build", False, "inductor"),
    ("examples/convnet.py:build", True, "inductor"),
    ("examples/attention.py:build", False, "inductor"),
    ("examples/convnet.py:build", False, "eager"),
)
"""Target, whether it is trained, and what compiles both arms; taken in turns."""
MOST_FOR_EACH = 2
"""Trials that are run for each that is to be complete."""


@dataclass(frozen=True)
class RealTrial:
    """How one of them ended. `ratio` is that of the arms' times, None where nothing was measured undisturbed."""

    target: str
    train: bool
    inner: str
    outcome: Outcome
    ratio: float | None
    pairs: tuple[float, ...]
    """The median of each pair of processes."""
    quads: int
    void: int
    reason: str
    complete: bool
    """Whether it has measured what its rule needs: one that was cut short, or failed at a gate, could not promote."""


def read_trials(file: Path, environment: Mapping[str, Any]) -> list[RealTrial]:
    """Return the trials that an earlier run has written. Exits with an error if they are another environment's."""
    if not file.exists():
        return []
    document = json.loads(file.read_text())
    if document["environment"] != environment:
        sys.exit(f"{file} has trials of another environment: name another file")
    return [
        RealTrial(**{**one, "outcome": Outcome(one["outcome"]), "pairs": tuple(one["pairs"])})
        for one in document["trials"]
    ]


def real_trials(count: int, policy: TrialPolicy, done: Sequence[RealTrial] = ()) -> Iterator[RealTrial]:
    """One after the other, until so many are complete, but no more than twice as many; each has its own seed, so that
    arms do not always begin in the same order. Those that are `done` count, and are not run again."""
    complete = sum(one.complete for one in done)
    for number in range(len(done), MOST_FOR_EACH * count):
        if complete == count:
            return
        target, train, inner = PROGRAMS[number % len(PROGRAMS)]
        base = Load(TargetWorkload(str(ROOT / target)), train, inner, seed=number)
        rules = policy.model_copy(update={"seed": number})
        run = run_trial(Programs(base, base), rules, start_arm)
        stats = run.verdict.statistics
        measured = stats is not None and (
            run.verdict.outcome is not Outcome.INCONCLUSIVE or stats.quads >= make_protocol(rules).quads
        )
        complete += measured
        yield RealTrial(
            target=target,
            train=train,
            inner=inner,
            outcome=run.verdict.outcome,
            ratio=None if stats is None else stats.ratio_median,
            pairs=() if stats is None else stats.pair_medians,
            quads=0 if stats is None else stats.quads,
            void=sum(quad.void for quad in run.quads),
            reason=run.verdict.reason,
            complete=measured,
        )
        print(
            f"{complete} of {count} complete: {target}{' --train' * train} {inner}: {run.verdict.reason}",
            file=sys.stderr,
        )
