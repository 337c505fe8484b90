"""Does stopping a program while another one runs change how fast its steps are?

    python benchmarks/tune_interleaving.py --output interleaving.json

Runs `benchmarks/tuned_training.py` in two configurations at a time. Both are alive, and one is stopped: their blocks,
as `frx tune` measures them, beside whole runs of each. Prefetching workers could work ahead while their program is
stopped, but they are stopped, too. What they wait for goes on, so batches come early after a stop. The settling steps
absorb them. `--settle 0` shows the effect. Times are in milliseconds.

With equal configurations the ratio should be 1. On a busy machine, look at ratios, not at times.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tune_truth import SCRIPT, plain_run

from frx_graph.runs.tune import live_arm
from frx_graph.runs.tune.live_arm import ArmStart, LiveArm
from frx_graph.runs.tune.step_stream import BlockLength, compute_block_length
from frx_graph.support.supervisor.process import unwind_on_termination
from frx_graph.trials.schedule import ABBA, BAAB, Arm

WAIT_MS = "24"
"""For a batch: one worker is too few, two are just too few, four are enough."""
PAIRS = ((0, 0), (1, 1), (2, 2), (4, 4), (0, 1), (1, 2), (2, 4))


def variables(workers: int) -> dict[str, str]:
    return {"FRX_NUM_WORKERS": str(workers), "FRX_PREFETCH_FACTOR": "2", "FRX_PERSISTENT_WORKERS": "true"}


def interleaved(first: int, second: int, quads: int, steps: int) -> tuple[dict[Arm, float], list[float]]:
    """Mean step of each in milliseconds, and the log ratio of each quad."""
    workers = {Arm.BASELINE: first, Arm.CANDIDATE: second}
    command = (sys.executable, str(SCRIPT), "--wait-ms", WAIT_MS)
    times: dict[Arm, list[float]] = {arm: [] for arm in Arm}
    ratios = []
    with tempfile.TemporaryDirectory(prefix="frx-interleaving-") as name:
        living: dict[Arm, LiveArm] = {}
        try:
            for arm in Arm:
                start = ArmStart(command, {**os.environ, **variables(workers[arm])}, 600.0, ignore_load=True)
                living[arm] = LiveArm(arm, start, Path(name) / arm)
                living[arm].warm_up(10)
            for quad in range(quads):
                seconds: dict[Arm, list[float]] = {arm: [] for arm in Arm}
                for arm in (ABBA, BAAB)[quad % 2]:
                    seconds[arm].append(living[arm].run_block(steps).seconds)
                for arm in Arm:
                    times[arm] += seconds[arm]
                ratios.append(
                    sum(map(math.log, seconds[Arm.BASELINE])) / 2 - sum(map(math.log, seconds[Arm.CANDIDATE])) / 2
                )
        finally:
            for one in living.values():
                one.end()
    return {arm: 1e3 * statistics.fmean(found) for arm, found in times.items()}, ratios


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for first, second in PAIRS:
        times, ratios = interleaved(first, second, options.quads, options.steps)
        plain = [
            statistics.median(plain_run(variables(workers), "--wait-ms", WAIT_MS) for _ in range(options.runs))
            for workers in (first, second)
        ]
        yield {
            "workers": [first, second],
            "interleaved_ms": list(times.values()),
            "plain_ms": plain,
            "interleaved_ratio": math.exp(statistics.median(ratios)),
            "quad_deviation": statistics.stdev(ratios),
            "plain_ratio": plain[0] / plain[1],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quads", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--settle", type=int, help="steps that settle, instead of what tune takes")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()

    def length(steps: int, workers: int | None) -> BlockLength:
        found = compute_block_length(steps, workers)
        return found if options.settle is None else BlockLength(options.settle, found.count)

    print(f"{'workers':>9} {'interleaved ms':>17} {'plain ms':>17} {'ratio':>7} {'sd':>6} {'plain':>7}")
    found = []
    with unwind_on_termination(), mock.patch.object(live_arm, "compute_block_length", length):
        for row in rows(options):
            found.append(row)
            a, b = row["workers"]
            times, plain = row["interleaved_ms"], row["plain_ms"]
            print(
                f"{a:>4}, {b:<3} {times[0]:8.2f} {times[1]:8.2f} {plain[0]:8.2f} {plain[1]:8.2f} "
                f"{row['interleaved_ratio']:7.3f} {row['quad_deviation']:6.3f} {row['plain_ratio']:7.3f}",
                flush=True,
            )
    if options.output is not None:
        document = {"processors": os.cpu_count(), "settle": options.settle, "rows": found}
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
