"""Runs a network with and without frx, and compares the gain with the one that its trial has promised.

    python examples/apply.py benchmarks/zoo.py:resnet18

Two programs in one process evict each other's weights from the caches. So each measurement has a process to itself, and
the two programs take turns. The promise is the interval that the trial has recorded in the ledger. If the trial has
measured with pooled memory, so do these processes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

from frx_graph.advisor.target import load_target
from frx_graph.support.allocator import POOLING_VARIABLES, Allocation, read_allocation

PAIRS, WARM_CALLS, TIMED_CALLS = 5, 5, 30
PYTHON = sys.executable


def measure(target: str, backend: str) -> None:
    """Print the median time of a call, and the process, as one line of JSON."""
    torch.manual_seed(0)
    given = load_target(target)
    assert isinstance(given.model, torch.nn.Module)
    compiled = torch.compile(given.model, backend=backend)
    times = []
    with torch.no_grad():
        expected, found = given.model(*given.args, **given.kwargs), compiled(*given.args, **given.kwargs)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        for _ in range(WARM_CALLS + TIMED_CALLS):
            began = time.perf_counter()
            compiled(*given.args, **given.kwargs)
            if torch.accelerator.is_available():
                torch.accelerator.synchronize()
            times.append(time.perf_counter() - began)
    print(json.dumps({"process_id": os.getpid(), "seconds": statistics.median(times[WARM_CALLS:])}))


def run_arm(target: str, backend: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return what `measure` prints in a fresh process, which has these `variables` beside this one's environment."""
    environment = {**os.environ, **variables}
    command = [PYTHON, __file__, target, backend]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def list_events(*filters: str) -> list[dict[str, Any]]:
    """Return the ledger's latest events that `frx ledger list` selects by `filters`."""
    command = [PYTHON, "-m", "frx_graph", "ledger", "list", "--json", *filters]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    events: list[dict[str, Any]] = json.loads(done.stdout)["events"] if done.returncode == 0 else []
    return events


def choose_variables(target: str) -> Mapping[str, str]:
    """Return the variables that pool memory, if the last trial that promoted a plan of `target` has measured so, else
    none."""
    trials = [event["trial"] for event in list_events("--kind", "tried")]
    promoted = [one for one in trials if one and one["verdict"] == "promote" and one.get("target") == target]
    setup = ((promoted[-1].get("environment") or {}) if promoted else {}).get("setup", {})
    pools = setup.get("allocation") == Allocation.POOLED and read_allocation() is Allocation.DEFAULT
    return POOLING_VARIABLES if pools else {}


def find_promise(applied: dict[str, Any]) -> dict[str, Any] | None:
    """Return the statistics of the trial that promoted the plan of an `applied` event; None if it has none."""
    graph = ("--signature", applied["signature"], "--environment", applied["environment"])
    trials = [event["trial"] for event in list_events("--kind", "tried", *graph) if event["plan"] == applied["plan"]]
    stats = [trial.get("stats") for trial in trials if trial and trial["verdict"] == "promote"]
    return stats[-1] if stats else None


def describe(plans: list[dict[str, Any]]) -> str:
    """Return the rewrites of applied plans; one without operators is another way to compile the graph."""
    made = [candidate for event in plans for candidate in event["candidates"]]
    return ", ".join(f"{c['rewrite']} of {len(c['nodes'])} operators" if c["nodes"] else c["choices"][0] for c in made)


def compare(ratios: list[float], promise: dict[str, Any]) -> str:
    """Return the promise and the replication in one line; a ratio is the time without frx over that with it."""
    low, high = promise["ci_low"], promise["ci_high"] or float("inf")
    found = statistics.median(ratios)
    place = "within" if low <= found <= high else "below" if found < low else "above"
    promised = f"promised {percent(promise['ratio_median'])} % ({percent(low)} to {percent(high)})"
    spread = f"{percent(min(ratios))} to {percent(max(ratios))}"
    noisy = max(ratios) - min(ratios) > high - low
    doubt = "; the pairs differ by more than that interval: repeat on an idle machine" if noisy else ""
    return f"{promised}, replicated {percent(found)} % ({spread} in {len(ratios)} pairs of processes): {place}{doubt}"


def percent(ratio: float) -> str:
    """Return how much faster, in percent."""
    return f"{100 * (ratio - 1):+.0f}"


def main(target: str) -> None:
    """Measure pairs of processes in alternating order, and print what was applied, promised and replicated."""
    ratios = []
    variables = choose_variables(target)
    if variables:
        print("Both programs keep the memory that they free, as in the trial.", flush=True)
    for number in range(PAIRS):
        order = ("inductor", "frx") if number % 2 == 0 else ("frx", "inductor")
        arms = {backend: run_arm(target, backend, variables) for backend in order}
        if number == 0:
            process = arms["frx"]["process_id"]
            plans = [event for event in list_events("--kind", "applied") if event["process_id"] == process]
            if not plans:
                print("Nothing was promoted for this network here, so frx applies nothing: both programs are the same.")
                return
            print(f"Applied: {describe(plans)}. The outputs agree with eager's.", flush=True)
        plain, ours = arms["inductor"]["seconds"], arms["frx"]["seconds"]
        ratios.append(plain / ours)
        times = f"Inductor alone {1e3 * plain:.1f} ms, with frx {1e3 * ours:.1f} ms a call"
        print(f"Pair {number + 1} of {PAIRS}: {times}, {percent(plain / ours)} %.", flush=True)
    promise = find_promise(plans[0]) if len(plans) == 1 else None
    if promise is None:
        print(f"replicated {percent(statistics.median(ratios))} %; no single trial has promised an interval for it")
    else:
        print(compare(ratios, promise))


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) == 2 else measure(*sys.argv[1:])
