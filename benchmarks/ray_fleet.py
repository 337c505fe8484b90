"""How many trials do two nodes of a Ray cluster run in the time in which one runs one?

    python benchmarks/ray_fleet.py --output benchmarks/results/ray-fleet.json

Two nodes of one processor each are begun on this machine, each held to a processor of its own. In each round the same
trials, real ones of a small program against itself, run on one of them and on both, first the one or first the other in
turns. The ratio of the throughputs should be 1.7 or more; exit code 1: it is not. It needs two processors that nothing
else uses: other programs' load voids quads, which makes any trial longer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from frx_graph.autopilot.target_trial import TargetTrial, TrialJob, build_matrix
from frx_graph.engines.cluster import Cluster, Node
from frx_graph.engines.engine import Holding
from frx_graph.engines.ray_cluster import RayCluster, connect_ray
from frx_graph.engines.ray_engine import RayEngine
from frx_graph.errors import FrxError
from frx_graph.measure.machine.device_calibration import get_device_name
from frx_graph.support.atomic_file import write_atomically
from frx_graph.support.supervisor.process import extend_pythonpath, unwind_on_termination
from frx_graph.trials.policy import TrialPolicy
from frx_graph.version import __version__

BOUND = 1.7
_PROGRAM = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).eval(), (torch.randn(256, 256),)
"""
_STORE_BYTES = 80 * 2**20


class FirstNodes:
    """A cluster of which no more than the first `count` nodes are seen."""

    def __init__(self, cluster: RayCluster, count: int) -> None:
        self._cluster = cluster
        self._count = count

    def list_nodes(self) -> tuple[Node, ...]:
        return tuple(sorted(self._cluster.list_nodes(), key=lambda node: node.id)[: self._count])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)


@contextlib.contextmanager
def two_nodes(processors: Sequence[int]) -> Iterator[str]:
    """The address of a cluster whose nodes are each held to one of `processors`."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", **extend_pythonpath()}
    from ray.cluster_utils import Cluster as LocalCluster

    before = os.sched_getaffinity(0)
    made = LocalCluster()
    try:
        for processor in processors:
            # Whoever is started by this process may use what it may.
            os.sched_setaffinity(0, {processor})
            made.add_node(num_cpus=1, num_gpus=0, object_store_memory=_STORE_BYTES, include_dashboard=False)
        os.sched_setaffinity(0, before)
        yield made.address
    finally:
        os.sched_setaffinity(0, before)
        made.shutdown()


def throughput(cluster: Cluster, jobs: Sequence[TrialJob]) -> tuple[float, Counter[str]]:
    """Trials in a second, and how often there was which verdict. Raises what a trial raises."""
    verdicts: Counter[str] = Counter()
    begun = time.perf_counter()
    with contextlib.closing(RayEngine(cluster, Holding.CORES).run(jobs, lambda _: None)) as finished:
        for one in finished:
            if isinstance(one.result, FrxError):
                raise one.result
            assert isinstance(one.result, TargetTrial)
            verdicts[one.result.run.verdict.outcome.value] += 1
    return len(jobs) / (time.perf_counter() - begun), verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4, metavar="N", help="in each half of a round (4)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(3)")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="of a block: how long a trial measures (20)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="all figures, as JSON")
    given = parser.parse_args()
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        parser.error("two nodes need two processors")
    policy = TrialPolicy(process_pairs=2, quads_per_pair=5, void_quads_allowed=2, steps_per_block=given.steps)
    rounds = []
    ended: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="frx-fleet-") as folder, unwind_on_termination():
        programs = [Path(folder) / f"program{number}.py" for number in range(given.trials)]
        for program in programs:
            program.write_text(_PROGRAM)
        jobs = build_matrix(
            [f"{program}:build" for program in programs],
            (),
            (),
            (),
            device=None,
            train=False,
            inner="eager",
            against_itself=True,
            policy=policy,
        )
        with two_nodes(processors[:2]) as address, connect_ray(address) as cluster:
            both = {1: FirstNodes(cluster, 1), 2: FirstNodes(cluster, 2)}
            # What is read and imported first lies in the file system's cache afterwards.
            throughput(both[2], jobs[:2])
            for number in range(given.rounds):
                found = {}
                for nodes in (1, 2) if number % 2 == 0 else (2, 1):
                    found[nodes], verdicts = throughput(both[nodes], jobs)
                    ended += verdicts
                    print(f"round {number + 1}, {nodes} node{'s' * (nodes > 1)}: ", file=sys.stderr, end="")
                    print(f"{60 * found[nodes]:.2f} trials a minute, {dict(verdicts)}", file=sys.stderr)
                rounds.append(found)
    ratios = [found[2] / found[1] for found in rounds]
    ratio = statistics.median(ratios)
    print(f"{ratio:.2f} times the trials of one node on two (rounds: {', '.join(f'{r:.2f}' for r in ratios)})")
    if given.output is not None:
        import ray

        figures = {
            "ratio": ratio,
            "bound": BOUND,
            "trials_per_second": [{"one_node": found[1], "two_nodes": found[2]} for found in rounds],
            "trials": given.trials,
            "verdicts": ended,
            "machine": get_device_name(torch.device("cpu")),
            "processors": os.cpu_count(),
            "load_average": os.getloadavg(),
            "versions": {
                "frx": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "ray": ray.__version__,
            },
        }
        write_atomically(given.output, json.dumps(figures, indent=2) + "\n")
    return 0 if ratio >= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
