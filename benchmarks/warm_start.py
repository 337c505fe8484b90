"""What a promoted plan in the ledger adds to the start of a program, beside compiling: processes that are alike but for
that, one after the other in turns, with Inductor's caches warm.

    python benchmarks/warm_start.py [--processes 9] [--output FILE]

prints milliseconds as JSON. `lookup` is what happens between the call of the backend and the plan: imports, the graph's
signature, the environment's, opening, reading, and recording that the plan is applied. `first_call` is all of the first
call, whose medians' difference includes making the plan's rewrites, compiling or loading another graph, and the
machine's noise. Exits with 1 if the median lookup of a plan, or of what was rejected, exceeds the bound.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).parent.parent
BOUND_MS = 50.0

REJECTED = "rejected"
ARMS = ("no ledger", "nothing promoted", "promoted", REJECTED)
"""The ledger of each: none; one with decisions about another graph; one with a plan for this graph; one in which all
that could be tried for it was rejected, which only the autopilot asks for."""


def program() -> tuple[nn.Module, torch.Tensor]:
    """A convolutional network small enough that its compiling is mostly torch's, and one input."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers).eval(), torch.randn(2, 16, 16, 16)


def one_start(mode: str) -> dict[str, float]:
    """In a fresh process: compile and run the program once, as the environment's ledger says."""
    import torch._inductor.compile_fx

    from frx_graph import backend

    # Compiled first without us: what every program imports when it first compiles something is not ours.
    model, x = program()
    with torch.no_grad():
        torch.compile(model, backend="inductor")(x)
    torch._dynamo.reset()
    session = backend._session
    look_up = session.find_promotion
    lookup = [0.0, 0.0]

    def timed(*args: Any) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return look_up(*args)
        finally:
            lookup[0] += time.perf_counter() - wall
            lookup[1] += time.process_time() - cpu

    session.find_promotion = timed  # type: ignore[assignment, method-assign]
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.no_grad():
        torch.compile(model, backend="frx", options={"mode": mode})(x)
    if not lookup[0]:
        raise SystemExit("the backend has not looked for a plan where this benchmark measures it")
    return {
        "first_call": 1e3 * (time.perf_counter() - wall),
        "first_call_cpu": 1e3 * (time.process_time() - cpu),
        "lookup": 1e3 * lookup[0],
        "lookup_cpu": 1e3 * lookup[1],
        "applied": float(sum(len(done.applied) for done in backend.rewritten())),
    }


def write_ledger(file: Path, arm: str) -> None:
    """In a process of its own: the ledger of an arm, in which all that can be made of a program is promoted, or nothing
    was to be tried."""
    from unproved_promotions import everything_made, promotion

    from frx_graph.autopilot.trial_decisions import decide_search
    from frx_graph.compiler.code_fingerprint import compute_environment_key
    from frx_graph.ledger.database.opening import open_ledger
    from frx_graph.ledger.decision import AUTOPILOT, Kind, make_process_author
    from frx_graph.ledger.location import parse_location
    from frx_graph.trials.environment import read_trial_setup
    from frx_graph.trials.policy import TrialPolicy

    model, x = program()

    def run(backend: Any) -> None:
        with torch.no_grad():
            torch.compile(model, backend=backend)(x)

    (signature,), made = everything_made("inductor", run)
    if not made:
        raise SystemExit("nothing can be made of the program: there is nothing to measure")
    here = compute_environment_key(read_trial_setup(torch.device("cpu")))
    author = make_process_author(AUTOPILOT)
    rejected = decide_search(signature, here, TrialPolicy(), Kind.REJECTED, "nothing speaks for any", by=author)
    promoted = promotion(signature if arm == "promoted" else "0" * 16, made)
    open_ledger(parse_location(str(file))).append(rejected if arm == REJECTED else promoted)


def measure(processes: int) -> dict[str, Any]:
    """Medians in milliseconds over so many processes of each arm, after one of each that warms the caches."""
    with tempfile.TemporaryDirectory(prefix="frx-warm-start-") as text:
        folder = Path(text)
        common = {**os.environ, "XDG_DATA_HOME": str(folder / "nothing"), "PYTHONPATH": str(ROOT)}
        common.pop("FRX_LEDGER", None)
        environments = {arm: dict(common) for arm in ARMS}
        for arm in ARMS[1:]:
            file = folder / f"{arm}.sqlite3"
            _run(["--write", str(file), "--arm", arm], common, folder)
            environments[arm]["FRX_LEDGER"] = str(file)
        found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
        for number in range(processes + 1):
            for arm in ARMS:
                sample = json.loads(_run(["--one", "--arm", arm], environments[arm], folder))
                if bool(sample["applied"]) is not (arm == "promoted"):
                    raise SystemExit(f"{arm}: {sample['applied']:.0f} rewrites were applied")
                if number:
                    found[arm].append(sample)
                    print(f"{number} of {processes}: {arm}: {sample['lookup']:.1f} ms", file=sys.stderr)
    medians = {
        arm: {key: round(statistics.median(one[key] for one in samples), 2) for key in samples[0]}
        for arm, samples in found.items()
    }
    base, warm, rejected = medians[ARMS[0]], medians["promoted"], medians[REJECTED]
    return {
        "unit": "milliseconds, medians",
        "processes": processes,
        "added_by_lookup": round(warm["lookup"] - base["lookup"], 2),
        "added_by_lookup_cpu": round(warm["lookup_cpu"] - base["lookup_cpu"], 2),
        "added_by_lookup_of_rejected": round(rejected["lookup"] - base["lookup"], 2),
        "added_to_first_call": round(warm["first_call"] - base["first_call"], 2),
        "added_to_first_call_cpu": round(warm["first_call_cpu"] - base["first_call_cpu"], 2),
        "bound": BOUND_MS,
        "arms": medians,
        "samples": found,
    }


def _run(arguments: Sequence[str], environment: dict[str, str], folder: Path) -> str:
    command = [sys.executable, str(Path(__file__).absolute()), *arguments]
    done = subprocess.run(command, env=environment, cwd=folder, check=True, timeout=600, stdout=subprocess.PIPE)
    return done.stdout.decode().strip().splitlines()[-1] if done.stdout else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=9)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--arm", choices=ARMS, default=ARMS[0], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.write is not None:
        write_ledger(asked.write, asked.arm)
        return
    if asked.one:
        print(json.dumps(one_start("autopilot" if asked.arm == REJECTED else "apply")))
        return
    result = measure(asked.processes)
    text = json.dumps(result, indent=1)
    if asked.output is not None:
        asked.output.write_text(f"{text}\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in result.items() if key != "samples"}, indent=1))
    raise SystemExit(max(result["added_by_lookup"], result["added_by_lookup_of_rejected"]) > BOUND_MS)


if __name__ == "__main__":
    main()
