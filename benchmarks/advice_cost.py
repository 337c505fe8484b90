"""What the advisor costs: compile time, time per call, and analysis time and memory by size of the graph.

    python benchmarks/advice_cost.py [--quick] [--only compile|call|analysis] [--json FILE]

Bounds: in advise mode the backend adds at most 10 % to Inductor's cold compile time and at most 2 µs to a compiled
call; the analysis of a graph is linear in its nodes, and 100,000 of them take under 20 s and 2 GB. Exit code 1 when a
bound is broken. `--quick` runs small sizes once and judges nothing: it shows that the benchmark still works.

Every compilation runs in a fresh process with a fresh Inductor cache, every graph size in a fresh process; the arms of
a comparison alternate, and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from synthetic_graph import synthetic_capture
from tabulate import tabulate
from torch import Tensor
from zoo import zoo_entry

COMPILE_RATIO_BOUND = 1.10
CALL_BOUND_S = 2e-6
EXPONENT_BOUND = 1.10
LARGEST_SECONDS_BOUND = 20.0
LARGEST_BYTES_BOUND = 2 * 10**9

NETWORKS = ("mobilenet_v2", "segformer", "bert_base")
"""A convolutional network, one that switches between image and sequence layout, and a transformer."""
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
FITTED_SIZES = 3
"""The exponent is fitted to the largest sizes only: constant costs would flatten it at the small ones."""
ARMS: dict[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "frx": {"backend": "frx", "options": {"mode": "advise"}},
}


@dataclass(frozen=True)
class CompileCost:
    """Cold compile time of one network: medians in seconds, of the wall clock and of all processor time spent."""

    network: str
    repetitions: int
    inductor_s: float
    frx_s: float
    inductor_cpu_s: float
    frx_cpu_s: float
    report_s: float

    @property
    def ratio(self) -> float:
        return self.frx_s / self.inductor_s


@dataclass(frozen=True)
class CallCost:
    """Time of one call of a small compiled function: medians in seconds, over blocks of calls in turn."""

    blocks: int
    inductor_s: float
    frx_s: float

    @property
    def difference_s(self) -> float:
        return self.frx_s - self.inductor_s


@dataclass(frozen=True)
class AnalysisCost:
    """Analysis of one synthetic graph. `seconds` are of processor time, which is what one thread on an idle machine
    takes, whatever else runs on this one. `peak_bytes` is the whole process, torch and the graph included."""

    nodes: int
    findings: int
    seconds: float
    wall_seconds: float
    peak_bytes: int


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The power of `sizes` that `seconds` follow: the least-squares slope in logarithms."""
    slope, _ = statistics.linear_regression([math.log(n) for n in sizes], [math.log(s) for s in seconds])
    return slope


def in_fresh_process(task: str, *arguments: str) -> dict[str, float]:
    """Runs one `--worker` task and reads the one line of JSON that it prints last; its own cache folder is new."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, __file__, "--worker", task, *arguments]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{ran.stderr}")
    result: dict[str, float] = json.loads(ran.stdout.strip().splitlines()[-1])
    return result


def compile_worker(network: str, arm: str) -> dict[str, float]:
    """The first call of a compiled network: tracing, compiling, running once."""
    model, args, kwargs = zoo_entry(network).build(False)
    with torch.no_grad():
        cpu, started = _processor_seconds(), time.perf_counter()
        torch.compile(model, **ARMS[arm])(*args, **kwargs)
        seconds, cpu_seconds = time.perf_counter() - started, _processor_seconds() - cpu
    report_s = 0.0
    if arm == "frx":
        from frx_graph.backend import report

        started = time.perf_counter()
        report(measure=False)
        report_s = time.perf_counter() - started
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "report_s": report_s}


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def compile_cost(network: str, repetitions: int) -> CompileCost:
    """The arms alternate and swap places after every pair."""
    runs: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for repetition in range(repetitions):
        for arm in list(ARMS) if repetition % 2 == 0 else list(reversed(ARMS)):
            runs[arm].append(in_fresh_process("compile", network, arm))

    def median(arm: str, field: str) -> float:
        return statistics.median(run[field] for run in runs[arm])

    return CompileCost(
        network,
        repetitions,
        inductor_s=median("inductor", "seconds"),
        frx_s=median("frx", "seconds"),
        inductor_cpu_s=median("inductor", "cpu_seconds"),
        frx_cpu_s=median("frx", "cpu_seconds"),
        report_s=median("frx", "report_s"),
    )


def _small_program(x: Tensor) -> Tensor:
    return torch.relu(x * 2 + 1)


def call_worker(blocks: int, calls: int) -> dict[str, float]:
    """Both arms in one process, a block of calls each in turn."""
    x = torch.randn(8, 8)
    compiled: dict[str, Callable[[Tensor], Tensor]] = {}
    for arm, options in ARMS.items():
        # Dynamo keeps compiled versions by code object: each arm gets its own, or one would check the other's guards.
        own = FunctionType(_small_program.__code__.replace(), globals())
        compiled[arm] = torch.compile(own, **options)
        compiled[arm](x)
    samples: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with torch.no_grad():
        for block in range(-blocks // 10, blocks):
            for arm, function in compiled.items():
                started = time.perf_counter()
                for _ in range(calls):
                    function(x)
                if block >= 0:
                    samples[arm].append((time.perf_counter() - started) / calls)
    return {arm: statistics.median(samples[arm]) for arm in ARMS}


def call_cost(blocks: int, calls: int) -> CallCost:
    medians = in_fresh_process("call", str(blocks), str(calls))
    return CallCost(blocks, inductor_s=medians["inductor"], frx_s=medians["frx"])


def analysis_worker(nodes: int) -> dict[str, float]:
    """Facts, predicted copies, all detectors and the ranking, on one graph; nothing is measured."""
    from frx_graph.advisor.advisor import advise_capture

    capture = synthetic_capture(nodes)
    advise_capture(synthetic_capture(100), target="warm-up", measure=False)
    cpu, started = time.process_time(), time.perf_counter()
    report = advise_capture(capture, target="synthetic", measure=False)
    seconds, wall_seconds = time.process_time() - cpu, time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "nodes": len(capture.graphs[0].aten.graph.nodes),
        "findings": len(report.advice.findings),
        "seconds": seconds,
        "wall_seconds": wall_seconds,
        "peak_bytes": peak,
    }


def analysis_cost(nodes: int) -> AnalysisCost:
    run = in_fresh_process("analysis", str(nodes))
    return AnalysisCost(
        int(run["nodes"]), int(run["findings"]), run["seconds"], run["wall_seconds"], int(run["peak_bytes"])
    )


def broken_bounds(
    compiles: Sequence[CompileCost], call: CallCost | None, analyses: Sequence[AnalysisCost]
) -> list[str]:
    """One line for each bound that does not hold."""
    broken = [
        f"{cost.network}: compiling takes {cost.ratio:.3f} times as long, more than {COMPILE_RATIO_BOUND}"
        for cost in compiles
        if cost.ratio > COMPILE_RATIO_BOUND
    ]
    if call is not None and call.difference_s > CALL_BOUND_S:
        broken.append(f"a call takes {call.difference_s * 1e6:.2f} µs longer, more than {CALL_BOUND_S * 1e6:g}")
    if analyses:
        fitted = analyses[-FITTED_SIZES:]
        power = exponent([cost.nodes for cost in fitted], [cost.seconds for cost in fitted])
        if power > EXPONENT_BOUND:
            broken.append(f"analysis time grows as nodes^{power:.2f}, more than {EXPONENT_BOUND}")
        largest = analyses[-1]
        if largest.seconds > LARGEST_SECONDS_BOUND:
            broken.append(f"{largest.nodes} nodes take {largest.seconds:.1f} s, more than {LARGEST_SECONDS_BOUND:g}")
        if largest.peak_bytes > LARGEST_BYTES_BOUND:
            broken.append(f"{largest.nodes} nodes take {largest.peak_bytes / 1e9:.2f} GB, more than 2")
    return broken


def print_tables(compiles: Sequence[CompileCost], call: CallCost | None, analyses: Sequence[AnalysisCost]) -> None:
    if compiles:
        headers = ["network", "runs", "inductor s", "frx s", "ratio", "inductor cpu s", "frx cpu s", "report s"]
        rows = [
            [c.network, c.repetitions, c.inductor_s, c.frx_s, c.ratio, c.inductor_cpu_s, c.frx_cpu_s, c.report_s]
            for c in compiles
        ]
        print(f"\nCold compile time, advise mode\n{tabulate(rows, headers, floatfmt='.3f')}")
    if call is not None:
        row = [call.inductor_s * 1e6, call.frx_s * 1e6, call.difference_s * 1e6]
        print(f"\nOne compiled call\n{tabulate([row], ['inductor µs', 'frx µs', 'difference µs'], floatfmt='.3f')}")
    if analyses:
        rows = [
            [a.nodes, a.findings, a.seconds, a.wall_seconds, a.seconds / a.nodes * 1e6, a.peak_bytes / 1e9]
            for a in analyses
        ]
        headers = ["nodes", "findings", "cpu s", "wall s", "µs a node", "peak GB"]
        print(f"\nAnalysis of a synthetic graph\n{tabulate(rows, headers, floatfmt='.3f')}")
        fitted = analyses[-FITTED_SIZES:]
        power = exponent([cost.nodes for cost in fitted], [cost.seconds for cost in fitted])
        print(f"cpu s ~ nodes^{power:.3f} over the largest {len(fitted)}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What the advisor costs.")
    parser.add_argument("--quick", action="store_true", help="small sizes, once, nothing judged")
    parser.add_argument("--only", choices=("compile", "call", "analysis"))
    parser.add_argument("--repetitions", type=int, default=3, help="cold compilations of each network and arm")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        task, *values = given.worker
        workers: dict[str, Callable[[], dict[str, float]]] = {
            "compile": lambda: compile_worker(values[0], values[1]),
            "call": lambda: call_worker(int(values[0]), int(values[1])),
            "analysis": lambda: analysis_worker(int(values[0])),
        }
        print(json.dumps(workers[task]()))
        return 0

    def wanted(part: str) -> bool:
        return given.only in (None, part)

    networks = ("attention_block",) if given.quick else NETWORKS
    sizes = (300, 1_000, 3_000) if given.quick else SIZES
    analyses = [analysis_cost(nodes) for nodes in sizes] if wanted("analysis") else []
    call = call_cost(20 if given.quick else 400, 100) if wanted("call") else None
    compiles = (
        [compile_cost(name, 1 if given.quick else given.repetitions) for name in networks] if wanted("compile") else []
    )
    print_tables(compiles, call, analyses)
    broken = [] if given.quick else broken_bounds(compiles, call, analyses)
    if given.json:
        document = {
            "compile": [{**asdict(cost), "ratio": cost.ratio} for cost in compiles],
            "call": asdict(call) if call else None,
            "analysis": [asdict(cost) for cost in analyses],
            "broken": broken,
        }
        given.json.write_text(json.dumps(document, indent=2) + "\n")
    for line in broken:
        print(f"BROKEN: {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
