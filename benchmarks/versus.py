"""How fast networks run under frx, Inductor, eager and hand-tuned variants of both: interleaved, as ratios.

    python benchmarks/versus.py [--quick] [--entries resnet18,unet_plain] [--modes inference,training] [--batches 1,8]
        [--dtypes fp32,bf16] [--inners inductor,eager] [--arms NAME,NAME] [--allocations default,pooled]
        [--train-batch 4] [--rounds 15] [--block-seconds S] [--patience S] [--threads N] [--device cpu|cuda]
        [--budget-seconds S] [--json FILE [--resume]]

Every arm has its own copy of one network, in one process. First its outputs and gradients are checked against plain
eager, by torch's oracle with a double-precision reference: a wrong or broken arm is reported and not timed. Then all
arms are timed in turn (`versus_timing.py`); a figure is the median over rounds of reference time over arm time, so over
1 is faster. A training step is forward, backward and clearing the gradients; there is no optimizer and no dropout.
All cases run twice, with glibc's default allocation and with pooled memory: page faults are up to a third of a call.
Compile seconds are of the first step, with empty caches. Memory is the most that a step holds on top of weights and
inputs; conversions are the layout copies of one step (`versus_evidence.py`).

"frx" in the bounds is its fastest arm. Exit code 1 when a bound does not hold or an arm is broken; `--quick` runs few
rounds of small networks and judges nothing.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from pydantic import TypeAdapter
from versus_arms import Inner, selected
from versus_case import DTYPES, Case, Mode
from versus_measure import Settings, measure
from versus_results import CaseResult, verdicts
from versus_tables import print_results
from versus_timing import cpu_clock, cuda_clock
from zoo import ZOO, zoo_entry
from zoo_entry import ZooEntry

from frx_graph import __version__
from frx_graph.measure.machine.measurement_environment import get_measurement_environment
from frx_graph.support.allocator import Allocation, read_allocation
from frx_graph.support.atomic_file import write_atomically

EVERYTHING = {"modes": tuple(Mode), "batches": ("1", "8"), "dtypes": ("fp32", "bf16"), "inners": tuple(Inner)}
QUICK = EVERYTHING | {"batches": ("1",), "dtypes": ("fp32",)}
QUICK_ENTRIES = ("custom_between",)


def cases(
    entries: Sequence[ZooEntry],
    modes: Sequence[Mode],
    batches: Sequence[int],
    dtypes: Sequence[str],
    inners: Sequence[Inner],
    allocations: Sequence[Allocation] = (Allocation.DEFAULT,),
    train_batch: int | None = None,
) -> Iterator[Case]:
    """Every combination; training runs at `train_batch`, the entry's own where none is given. Those with pooled memory
    come last, since a process that pools memory cannot go back."""
    for allocation in sorted(allocations, key=lambda one: one is Allocation.POOLED):
        for entry in entries:
            for dtype, inner, mode in itertools.product(dtypes, inners, modes):
                for batch in batches if mode is Mode.INFERENCE else (train_batch or entry.train_batch,):
                    yield Case(entry, mode, batch, dtype, inner, allocation)


def cases_of(given: argparse.Namespace) -> Iterator[Case]:
    """The cases that were asked for. Raises `KeyError` and `ValueError` for what there is not."""
    default = QUICK if given.quick else EVERYTHING
    chosen = {axis: getattr(given, axis) or default[axis] for axis in EVERYTHING}
    names = given.entries or (QUICK_ENTRIES if given.quick else [entry.name for entry in ZOO])
    unknown = set(chosen["dtypes"]) - set(DTYPES)
    if unknown:
        raise ValueError(f"no dtype {', '.join(sorted(unknown))}; there are {', '.join(DTYPES)}")
    return cases(
        [zoo_entry(name) for name in names],
        [Mode(mode) for mode in chosen["modes"]],
        [int(batch) for batch in chosen["batches"]],
        chosen["dtypes"],
        [Inner(inner) for inner in chosen["inners"]],
        _allocations(given),
        given.train_batch,
    )


def _allocations(given: argparse.Namespace) -> tuple[Allocation, ...]:
    """The allocations of memory that were asked for: both where this process has glibc's default. Raises `ValueError`
    for one that this process cannot have."""
    own = read_allocation()
    possible = (own, Allocation.POOLED) if own is Allocation.DEFAULT and given.device == "cpu" else (own,)
    if not given.allocations:
        return possible[:1] if given.quick else possible
    if wrong := set(given.allocations) - set(possible):
        raise ValueError(f"this process has {own} memory, and cannot measure {', '.join(sorted(wrong))}")
    return tuple(Allocation(name) for name in given.allocations)


def document(results: Sequence[CaseResult], left_out: Sequence[str], device: str) -> dict[str, object]:
    """All samples and figures, for machines."""
    return {
        "frx": __version__,
        "environment": asdict(get_measurement_environment(device)),
        "cases": [asdict(case) for case in results],
        "left_out": list(left_out),
        "verdicts": [asdict(verdict) for verdict in verdicts(results, torch.__version__, device)],
    }


def measured_before(file: Path, device: str) -> list[CaseResult]:
    """The cases of a document; none where there is no such file. Raises `ValueError` for one of another environment,
    and for what is no document."""
    if not file.exists():
        return []
    found = json.loads(file.read_text())
    if not isinstance(found, dict) or found.get("environment") != asdict(get_measurement_environment(device)):
        raise ValueError(f"{file} was not measured in this environment; choose another file")
    return TypeAdapter(list[CaseResult]).validate_python(found.get("cases"))


def run(
    planned: Sequence[Case],
    measured: Callable[[Case], CaseResult],
    budget_seconds: float,
    report: Callable[[Sequence[CaseResult], Sequence[str]], None],
    before: Sequence[CaseResult] = (),
    now: Callable[[], float] = time.monotonic,
) -> tuple[list[CaseResult], list[str]]:
    """Measure case after case until the budget is spent, and `report` after each: the results, those from `before`
    first, and the titles of what was left out. What was measured before is not measured again."""
    started = now()
    results = list(before)
    known = {result.title for result in results}
    missing = [case for case in planned if case.title not in known]
    left_out = [case.title for case in missing]
    for case in missing:
        if now() - started >= budget_seconds:
            break
        results.append(measured(case))
        left_out.pop(0)
        report(results, left_out)
    return results, left_out


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parsed(arguments: Sequence[str] | None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small networks, few rounds, nothing judged")
    parser.add_argument("--entries", type=_names, help="names from the zoo; all if not given")
    for axis, values in EVERYTHING.items():
        parser.add_argument(f"--{axis}", type=_names, help=f"default: {','.join(values)}")
    parser.add_argument("--allocations", type=_names, help="of memory: default, pooled; both if not given")
    parser.add_argument(
        "--train-batch", type=int, metavar="N", help="of a training step; each entry's own if not given"
    )
    parser.add_argument("--arms", type=_names, help="all that this build supports if not given")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--block-seconds", type=float, default=0.1, help="length of a block of steps")
    parser.add_argument("--threads", type=int, help="of torch; on a busy machine one is measured best")
    parser.add_argument(
        "--patience", type=float, default=0.0, metavar="S", help="seconds a case to repeat rounds that were disturbed"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--budget-seconds", type=float, default=float("inf"), help="no case is begun after that")
    parser.add_argument("--json", type=Path, metavar="FILE", help="written after every case")
    parser.add_argument("--resume", action="store_true", help="go on where the run that wrote FILE has ended")
    return parser, parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    parser, given = parsed(arguments)
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    try:
        planned = list(cases_of(given))
        arms = {inner: selected(inner, given.arms) for inner in {case.inner for case in planned}}
        if given.resume and given.json is None:
            raise ValueError("--resume needs the --json FILE that is to be gone on with")
        before = measured_before(given.json, given.device) if given.resume else []
    except (KeyError, ValueError) as error:
        parser.error(str(error.args[0]))
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device")

    settings = Settings(
        device=torch.device(given.device),
        rounds=3 if given.quick else given.rounds,
        block_seconds=given.block_seconds,
        patience_s=given.patience,
        clock=cuda_clock if given.device == "cuda" else cpu_clock,
        progress=lambda text: print(text, file=sys.stderr, flush=True),
    )

    def measured(case: Case) -> CaseResult:
        result = measure(case, arms[case.inner], settings)
        gc.collect()
        return result

    def report(results: Sequence[CaseResult], left_out: Sequence[str]) -> None:
        if given.json is not None:
            write_atomically(given.json, json.dumps(document(results, left_out, given.device), indent=1) + "\n")

    results, left_out = run(planned, measured, given.budget_seconds, report, before)
    judged = () if given.quick else verdicts(results, torch.__version__, given.device)
    print_results(results, judged, left_out)
    broken = any(arm.error for case in results for arm in case.arms)
    return 1 if broken or any(verdict.holds is False for verdict in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
