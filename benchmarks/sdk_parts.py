"""Which part of what the SDK does in a step takes how long, where the step's own work has emptied the caches.

    python benchmarks/sdk_parts.py [--rounds N] [--work-ms MS]

Each part runs by itself behind so much other work, all in turns and in another order in each round; shown are the
median and the tenths at both ends, in microseconds. `once more` is the whole step told at once a second time, when all
of it is in the caches. `nothing` is the call of an empty function, which is in all others.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from sdk_overhead import Loader, network, rounds_for, spin
from tabulate import tabulate

from frx_graph.runs.sdk.session import AutopilotSession

WARM_UP = 2000


def parts(session: AutopilotSession) -> dict[str, Callable[[], object]]:
    """What a program calls, by the name of what it adds. Parts of a step have the step itself around them."""
    model, loss = network(), torch.zeros((), requires_grad=True) * 2
    batch = torch.zeros(32, 3, 8, 8), torch.zeros(32, dtype=torch.int64)
    batches = iter(session.instrument(Loader(batch, sys.maxsize)))

    def spans() -> None:
        for span in (session.copy_span, session.forward_span, session.backward_span, session.optimizer_span):
            with span():
                pass

    def step(batch: object = None, model: object = None) -> None:
        with session.step(0, batch=batch, model=model):
            pass

    def told() -> None:
        with session.step(0) as this:
            this.record(loss=loss, accuracy=0.5)

    def all_of_them() -> None:
        with session.step(0, batch=next(batches), model=model) as this:
            spans()
            this.record(loss=loss, accuracy=0.5)

    return {
        "nothing": lambda: None,
        "loader": lambda: next(batches),
        "step": step,
        "step, batch": lambda: step(batch),
        "step, parameters": lambda: step(None, model),
        "step, loss and metric": told,
        "four spans": spans,
        "all": all_of_them,
    }


def measure(session: AutopilotSession, rounds: int, work_ns: int) -> dict[str, list[int]]:
    """Nanoseconds of each part in each round."""
    calls = parts(session)
    for _ in range(WARM_UP):
        for call in calls.values():
            call()
    work = rounds_for(spin, work_ns)
    times: dict[str, list[int]] = {name: [] for name in (*calls, "once more")}
    order = list(calls)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            spin(work)
            times[name].append(_timed(calls[name]))
            if name == "all":
                times["once more"].append(_timed(calls[name]))
    return times


def _timed(call: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=250)
    parser.add_argument("--work-ms", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FRX_RAW_TRACE_PATH"] = str(Path(folder) / "trace.jsonl")
        session = AutopilotSession.from_env()
        times = measure(session, options.rounds, round(options.work_ms * 1e6))
        session.close()
    rows = []
    for name, found in times.items():
        tenths = statistics.quantiles(found, n=10)
        rows.append((name, *(f"{value / 1e3:.1f}" for value in (statistics.median(found), tenths[0], tenths[-1]))))
    print(tabulate(rows, ("part", "median µs", "tenth", "nine tenths")))


if __name__ == "__main__":
    main()
