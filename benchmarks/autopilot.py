"""Does the autopilot keep what it promises? Predicted, measured and replicated savings of all that it tried on the zoo.

    python benchmarks/autopilot.py [--models resnet18,unet_plain] [--train] [--batch N] [--device cpu|cuda]
        [--inner inductor|eager] [--policy FILE] [--limit S] [--json FILE [--resume]]

Each network runs with `options={"mode": "autopilot"}` in a process of its own, with a ledger of its own. What it has
decided is then read there and measured again, on the same graphs with the same inputs, in fresh processes:

- every plan that was promoted, in another trial under the same rule. It is replicated if its median is again above the
  policy's minimum. A trial that was cut short counts neither way.
- what is applied against the best single candidate that was tried, promoted or not: in a trial of its own (ABBA) where
  they differ, unless nothing is applied and that candidate's own trial found it within 2 % of the baseline. It holds
  from 0.98 on; it is broken where the whole interval lies below that, and not known in between.

A prediction is the sum of what a plan's candidates are predicted to save; where one of them has none it is unknown, and
not compared. Errors are predicted minus measured, of trials that were not cut short. Medians of few quads are mostly
noise: the figures say how many there are. Exit code 1 when a bound is broken or a network does not run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from autopilot_measure import Job, measure
from autopilot_results import CaseResult, summary, verdicts
from autopilot_tables import print_results
from pydantic import TypeAdapter
from versus_arms import Inner
from zoo import ZOO, zoo_entry

from frx_graph import __version__
from frx_graph.errors import PolicyError
from frx_graph.measure.machine.measurement_environment import get_measurement_environment
from frx_graph.trials.policy import TrialPolicy, read_policy

LIMIT_SECONDS = 3600.0


def jobs(given: argparse.Namespace, policy: TrialPolicy) -> list[Job]:
    """What is to be run. Raises `KeyError` for a network that there is not."""
    entries = [zoo_entry(name) for name in given.models] if given.models else list(ZOO)
    modes = (False, True) if given.train else (False,)
    return [
        Job(
            model=entry.name,
            train=train,
            batch=entry.train_batch if train else given.batch,
            device=given.device,
            inner=Inner(given.inner),
            policy=policy,
            limit_seconds=given.limit,
        )
        for entry in entries
        for train in modes
    ]


def made_by(policy: TrialPolicy, device: str, inner: str) -> dict[str, Any]:
    """What figures depend on: those of two runs belong together only where this is the same."""
    return {
        "frx": __version__,
        "environment": asdict(get_measurement_environment(device)),
        "inner": inner,
        "policy": policy.model_dump(mode="json"),
    }


def document(cases: Sequence[CaseResult], how: dict[str, Any], minimum_speedup: float) -> dict[str, Any]:
    """All figures, for machines."""
    figures = summary(cases, minimum_speedup)
    return {
        **how,
        "cases": [asdict(case) for case in cases],
        "summary": {**asdict(figures), "replication": figures.replication},
        "verdicts": [asdict(verdict) for verdict in verdicts(cases, figures)],
    }


def measured_before(file: Path, how: dict[str, Any]) -> list[CaseResult]:
    """The cases of a document; none where there is no such file. Raises `ValueError` for one that was made otherwise,
    and for what is no document."""
    if not file.exists():
        return []
    found = json.loads(file.read_text())
    if not isinstance(found, dict) or any(found.get(name) != value for name, value in how.items()):
        raise ValueError(f"{file} was not measured so, or not here; choose another file")
    return TypeAdapter(list[CaseResult]).validate_python(found.get("cases"))


def run(
    planned: Sequence[Job],
    one: Callable[[Job], CaseResult],
    report: Callable[[Sequence[CaseResult]], None],
    before: Sequence[CaseResult] = (),
) -> list[CaseResult]:
    """The results of all, those from `before` first; `report` is given them after each."""
    results = list(before)
    known = {result.title for result in results}
    for job in planned:
        if job.title not in known:
            results.append(one(job))
            report(results)
    return results


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parsed(arguments: Sequence[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=_names, help="names from the zoo; all if not given")
    parser.add_argument("--train", action="store_true", help="training steps, too")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="of inference; training has each entry's own")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--inner", choices=[inner.value for inner in Inner], default=Inner.INDUCTOR.value)
    parser.add_argument("--policy", type=Path, metavar="FILE", help="YAML; the default policy if not given")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_SECONDS, metavar="S", help=f"seconds a network ({LIMIT_SECONDS:.0f})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="written after every network")
    parser.add_argument("--resume", action="store_true", help="go on where the run that wrote FILE has ended")
    return parser, parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    parser, given = parsed(arguments)
    try:
        policy = read_policy(given.policy) if given.policy else TrialPolicy()
        planned = jobs(given, policy)
        how = made_by(policy, given.device, given.inner)
        if given.resume and given.json is None:
            raise ValueError("--resume needs the --json FILE that is to be gone on with")
        before = measured_before(given.json, how) if given.resume else []
    except (KeyError, ValueError, PolicyError) as error:
        parser.error(str(error.args[0]))
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device")

    def report(results: Sequence[CaseResult]) -> None:
        if given.json is not None:
            text = json.dumps(document(results, how, policy.minimum_speedup), indent=1)
            given.json.write_text(text + "\n")

    def progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    cases = run(planned, lambda job: measure(job, progress), report, before)
    figures = summary(cases, policy.minimum_speedup)
    judged = verdicts(cases, figures)
    print(f"frx {__version__}, torch {torch.__version__}, {how['environment']['device_name']}, inner {given.inner}")
    print_results(cases, figures, judged, policy.minimum_speedup)
    return 1 if any(case.failed for case in cases) or any(verdict.holds is False for verdict in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
