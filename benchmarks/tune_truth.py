"""Does `frx tune` find what was planted in a training script, claim as much as a clock on the wall sees, and leave what
does nothing alone?

    python benchmarks/tune_truth.py --noop-runs 30 --output benchmarks/results/tune-truth.json

`benchmarks/tuned_training.py` waits for its samples, and has a model that is slow on contiguous tensors. Truth is made
of plain whole runs, without anything of tune in them: the script is run in each configuration, in turns, and times
itself from batch to batch. The best configuration is the one that takes least; what tune has found is the best one,
too, if it takes at most 3 % more, since nearer ones cannot be told apart. The claimed gain is right if it is within 5
points of what the script measures itself.

Then a variable that nothing is done with is tuned, again and again: it is never to be promoted. So that this says
something, how many of these runs came to an answer is told, too.

Exit code 1 if any of this does not hold. It needs a machine with nothing else on it: what was measured beside other
programs is void, and then tune promotes nothing, whatever was planted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scipy.stats import t

from frx_graph.reports.render.document import to_json
from frx_graph.reports.trials.tune_report import TuneDocument
from frx_graph.runs.tune.examination import find_bottleneck
from frx_graph.runs.tune.settings import TuneSettings
from frx_graph.runs.tune.tune_folder import make_tune_folder
from frx_graph.runs.tune.tune_run import TuneRun
from frx_graph.support.supervisor.process import unwind_on_termination
from frx_graph.trials.configuration_trial import Kind

SCRIPT = Path(__file__).with_name("tuned_training.py")
TRUTH_STEPS = 200
NEAR = 0.03
COMPARED = 4
"""So many times the rounds of the grid are those of what is compared in the end."""
POINTS = 5.0
NOOP_ARGUMENTS = ("--channels", "16", "--blocks", "0", "--wait-ms", "0")
"""A step of a few milliseconds: what does nothing does it in short steps, too."""
Variables = Mapping[str, str]


def truth_grid() -> tuple[dict[str, str], ...]:
    """All configurations that could be the best."""
    workers = sorted({0, 1, 2, 2 * (os.cpu_count() or 1)})
    return tuple(
        {"FRX_NUM_WORKERS": str(count)} | ({"FRX_CHANNELS_LAST": "true"} if last else {})
        for count in workers
        for last in (False, True)
    )


def plain_run(variables: Variables, *arguments: str) -> float:
    """Milliseconds of a step, as the script times itself."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FRX_")}
    found = subprocess.run(
        [sys.executable, str(SCRIPT), "--times", "--steps", str(TRUTH_STEPS), *arguments],
        env=environment | dict(variables),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return float(found.stdout.split()[-1])


def in_turns(configurations: Sequence[Variables], rounds: int) -> list[list[float]]:
    """Times of each, every other round in the opposite order, so that what drifts meets all alike."""
    times: list[list[float]] = [[] for _ in configurations]
    for turn in range(rounds):
        order = range(len(configurations)) if turn % 2 == 0 else range(len(configurations) - 1, -1, -1)
        for index in order:
            times[index].append(plain_run(configurations[index]))
    return times


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of two configurations' times: the geometric mean over rounds, with a 95 % interval (Student's t of the logs)."""

    value: float
    low: float
    high: float


def ratio(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """Times of `first` over those of `second`, run in the same rounds. At least two rounds."""
    logs = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    mean = statistics.fmean(logs)
    reach = float(t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def tuned(settings: TuneSettings, folder: Path, name: str, *, tell: bool) -> TuneDocument:
    def say(text: str) -> None:
        if tell:
            print(f"    {text}", file=sys.stderr)

    # What was planted is a layout; a compiler that does something else about it is another matter.
    environment = {**os.environ, "FRX_TORCH_COMPILE": "unsupported"}
    place = make_tune_folder(folder, name, settings)
    return TuneRun(settings, place, diagnose=find_bottleneck, say=say, environment=environment).run()


def planted(folder: Path, *, rounds: int, ignore_load: bool) -> dict[str, Any]:
    """What tune finds of what was planted, beside the truth."""
    settings = TuneSettings(
        command=(sys.executable, str(SCRIPT)),
        safe=False,
        families=("dataloader", "layout"),
        ignore_load=ignore_load,
    )
    began = time.monotonic()
    document = tuned(settings, folder, "planted", tell=True)
    took = time.monotonic() - began
    winner = document.winner
    found = dict(winner.environment) if winner is not None else {}
    grid = truth_grid()
    medians = [statistics.median(times) for times in in_turns(grid, rounds)]
    best = min(zip(medians, grid, strict=True), key=lambda row: row[0])[1]
    default, chosen, fastest = in_turns(({}, found, best), COMPARED * rounds)
    true, behind = ratio(default, chosen), ratio(chosen, fastest)
    return {
        "found": found,
        "best": best,
        "claimed_gain": winner and winner.speedup,
        "claimed_low": winner and winner.speedup_low,
        "true_gain": true.value - 1,
        "true_low": true.low - 1,
        "true_high": true.high - 1,
        "points_apart": winner and 100 * abs(winner.speedup - (true.value - 1)),
        "found_over_best": asdict(behind),
        "milliseconds": {
            "default": statistics.median(default),
            "found": statistics.median(chosen),
            "best": statistics.median(fastest),
        },
        "grid_ms": [{"variables": dict(one), "ms": ms} for one, ms in zip(grid, medians, strict=True)],
        "is_best": bool(found) and behind.value <= 1 + NEAR,
        "seconds": took,
        "document": to_json(
            document.model_copy(
                update={"trials": tuple(_without_samples(document)), "command": ("python", f"benchmarks/{SCRIPT.name}")}
            )
        ),
    }


def _without_samples(document: TuneDocument) -> list[Any]:
    return [replace(trial, quads=()) for trial in document.trials]


def noops(folder: Path, runs: int, *, ignore_load: bool) -> dict[str, Any]:
    """Verdicts on a variable that does nothing, each of a tune of its own."""
    verdicts: Counter[str] = Counter()
    ratios = []
    promoted = 0
    began = time.monotonic()
    for number in range(runs):
        settings = TuneSettings(
            command=(sys.executable, str(SCRIPT), *NOOP_ARGUMENTS),
            families=("custom",),
            candidates=((("FRX_TUNED_NOOP", "1"),),),
            ignore_load=ignore_load,
            seed=number,
        )
        document = tuned(settings, folder, f"noop-{number}", tell=False)
        promoted += document.winner is not None
        trial = next(trial for trial in document.trials if trial.kind is Kind.FULL)
        verdicts[str(trial.fate)] += 1
        ratios.append(None if trial.gain is None else trial.gain.ratio)
        print(f"    no-op {number + 1} of {runs}: {trial.fate}: {trial.reason}", file=sys.stderr)
    return {
        "runs": runs,
        "promoted": promoted,
        "verdicts": dict(verdicts),
        "ratios": ratios,
        "seconds": time.monotonic() - began,
    }


def table(results: Mapping[str, Any]) -> str:
    """For people."""
    lines = []
    if (plant := results.get("planted")) is not None:
        lines += [f"{'configuration':<52} {'ms a step':>10}"]
        for row in plant["grid_ms"]:
            lines.append(f"{' '.join(f'{k}={v}' for k, v in row['variables'].items()):<52} {row['ms']:10.2f}")
        lines += [
            "",
            f"found: {' '.join(f'{k}={v}' for k, v in plant['found'].items()) or 'nothing'}",
            f"best of all: {' '.join(f'{k}={v}' for k, v in plant['best'].items())}",
            f"  what was found takes {plant['found_over_best']['value']:.3f} times its time "
            f"({plant['found_over_best']['low']:.3f} to {plant['found_over_best']['high']:.3f}): "
            f"{'the best' if plant['is_best'] else 'not the best'}",
            f"  claimed {_percent(plant['claimed_gain'])} (at least {_percent(plant['claimed_low'])}), in truth "
            f"{_percent(plant['true_gain'])} ({_percent(plant['true_low'])} to {_percent(plant['true_high'])})",
            f"  in {plant['seconds']:.0f} s",
        ]
    if (noop := results.get("noop")) is not None:
        verdicts = ", ".join(f"{name} {count}" for name, count in sorted(noop["verdicts"].items()))
        lines += [
            "",
            f"no-op promoted in {noop['promoted']} of {noop['runs']} runs ({verdicts}), {noop['seconds']:.0f} s",
        ]
    return "\n".join(lines)


def _percent(gain: float | None) -> str:
    return "nothing" if gain is None else f"{100 * gain:+.1f} %"


def holds(results: Mapping[str, Any]) -> bool:
    """Whether all that was promised does."""
    plant, noop = results.get("planted"), results.get("noop")
    found = plant is None or (plant["is_best"] and plant["points_apart"] <= POINTS)
    return bool(found) and (noop is None or noop["promoted"] == 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noop-runs", type=int, default=30)
    parser.add_argument("--no-planted", action="store_true", help="only what does nothing")
    parser.add_argument("--rounds", type=int, default=4, help="plain runs of each configuration")
    parser.add_argument(
        "--ignore-load", action="store_true", help="as frx tune's: to try the benchmark on a busy machine"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {"processors": os.cpu_count(), "ignore_load": options.ignore_load}
    with unwind_on_termination(), tempfile.TemporaryDirectory(prefix="frx-tune-truth-") as name:
        folder = Path(name)
        if not options.no_planted:
            results["planted"] = planted(folder, rounds=options.rounds, ignore_load=options.ignore_load)
        if options.noop_runs:
            results["noop"] = noops(folder, options.noop_runs, ignore_load=options.ignore_load)
    print(table(results))
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return 0 if holds(results) else 1


if __name__ == "__main__":
    sys.exit(main())
