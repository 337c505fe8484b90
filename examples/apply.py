"""Runs a network with and without frx, and compares the gain with the one that its trial has promised.

    python examples/apply.py benchmarks/zoo.py:resnet18 [--train] [--json]

Two programs in one process evict each other's weights from the caches. So each has a process to itself, and the two
take turns of a few calls: what the machine does meanwhile meets both. The promise is the interval that the trial has
recorded in the ledger. If the trial has measured with pooled memory, so do these processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from frx_graph.advisor.target import load_target
from frx_graph.capture.aten_trace import run_step
from frx_graph.support.allocator import POOLING_VARIABLES, Allocation, read_allocation

PAIRS, WARM_CALLS, TURNS, CALLS = 5, 5, 8, 5
"""Pairs of processes, and for each process: calls that do not count, turns, and calls in a turn."""
PYTHON = sys.executable


def serve_turns(target: str, backend: str, train: bool) -> None:
    """Compile the target, and time a turn for each line of standard input. Print a line of JSON when ready, and one
    with the median seconds of a call for each turn."""
    torch.manual_seed(0)
    given = load_target(target)
    assert isinstance(given.model, torch.nn.Module)
    model = given.model
    compiled = torch.compile(model, backend=backend)

    def call(program: Any) -> Any:
        outputs = run_step(program, given.args, given.kwargs, train=train)
        model.zero_grad()
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return outputs

    def measure_call() -> float:
        began = time.perf_counter()
        call(compiled)
        return time.perf_counter() - began

    if train:
        call(compiled)  # A batch norm changes with each training step, so outputs differ from call to call.
    else:
        torch.testing.assert_close(call(compiled), call(model), rtol=1e-3, atol=1e-3)
    for _ in range(WARM_CALLS):
        call(compiled)
    print(json.dumps({"process_id": os.getpid()}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"seconds": statistics.median(measure_call() for _ in range(CALLS))}), flush=True)


class Program:
    """A fresh process that has compiled the target and times calls when asked to."""

    def __init__(self, target: str, backend: str, train: bool, variables: Mapping[str, str]) -> None:
        command = [PYTHON, __file__, target, "--serve", backend, *(["--train"] if train else [])]
        environment = {**os.environ, **variables}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def wait_until_ready(self) -> int:
        """Return the process's id once it has compiled the target."""
        return int(self.read()["process_id"])

    def read(self) -> dict[str, Any]:
        """Return the next line of JSON that the process prints; other lines are the target's own."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise SystemExit(f"the program has ended with exit code {self.process.wait()}")

    def take_turn(self) -> float:
        """Return the median seconds of the calls in a turn."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.read()["seconds"])

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare_turns(programs: Mapping[str, Program], first: Sequence[str]) -> tuple[float, float, float]:
    """Return the median seconds of a call without and with frx, and the median ratio of a turn of each. The programs
    take turns, in changing order."""
    times: dict[str, list[float]] = {backend: [] for backend in programs}
    for turn in range(TURNS):
        for backend in first if turn % 2 == 0 else reversed(first):
            times[backend].append(programs[backend].take_turn())
    plain, ours = times["inductor"], times["frx"]
    ratio = statistics.median(one / other for one, other in zip(plain, ours, strict=True))
    return statistics.median(plain), statistics.median(ours), ratio


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
    wanted = resolve_target(target)
    promoted = [
        one for one in trials if one and one["verdict"] == "promote" and resolve_target(one.get("target", "")) == wanted
    ]
    setup = ((promoted[-1].get("environment") or {}) if promoted else {}).get("setup", {})
    pools = setup.get("allocation") == Allocation.POOLED and read_allocation() is Allocation.DEFAULT
    return POOLING_VARIABLES if pools else {}


def resolve_target(target: str) -> str:
    """Return `target` with the whole path of its file, if it names one."""
    place, _, name = target.rpartition(":")
    return f"{os.path.realpath(place)}:{name}" if place.endswith(".py") else target


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


def main(target: str, *, train: bool = False, as_json: bool = False) -> None:
    """Measure pairs of processes, and print what was applied, promised and replicated."""

    def say(text: str) -> None:
        print(text, file=sys.stderr if as_json else sys.stdout, flush=True)

    ratios: list[float] = []
    plans: list[dict[str, Any]] = []
    variables = choose_variables(target)
    agreement = "" if train else " The outputs agree with eager's."
    if variables:
        say("Both programs keep the memory that they free, as in the trial.")
    for number in range(PAIRS):
        order = ("inductor", "frx") if number % 2 == 0 else ("frx", "inductor")
        programs = {backend: Program(target, backend, train, variables) for backend in order}
        try:
            processes = {backend: program.wait_until_ready() for backend, program in programs.items()}
            if not plans:
                process = processes["frx"]
                plans = [event for event in list_events("--kind", "applied") if event["process_id"] == process]
                if not plans:
                    say("Nothing was promoted for this network here, so frx applies nothing: both are the same.")
                    break
                say(f"Applied: {describe(plans)}.{agreement}")
            plain, ours, ratio = compare_turns(programs, order)
        finally:
            for program in programs.values():
                program.stop()
        ratios.append(ratio)
        times = f"Inductor alone {1e3 * plain:.1f} ms, with frx {1e3 * ours:.1f} ms a call"
        say(f"Pair {number + 1} of {PAIRS}: {times}, {percent(ratio)} %.")
    promise = find_promise(plans[0]) if len(plans) == 1 else None
    if ratios and promise is None:
        say(f"replicated {percent(statistics.median(ratios))} %; no single trial has promised an interval for it")
    elif ratios and promise is not None:
        say(compare(ratios, promise))
    if as_json:
        print(json.dumps({"promise": promise, "ratios": ratios}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--train", action="store_true", help="forward and backward")
    parser.add_argument("--json", action="store_true", help="print the promise and the ratios as JSON at the end")
    parser.add_argument("--serve", metavar="BACKEND", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve_turns(asked.target, asked.serve, asked.train)
    else:
        main(asked.target, train=asked.train, as_json=asked.json)
