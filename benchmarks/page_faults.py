"""Counts the page faults of a call of compiled networks, with glibc's own settings and with pooled memory.

    python benchmarks/page_faults.py resnet18 convnet --processes 3

Each count is the median of the calls of one fresh process. A network is one of the zoo's, at batch 1, or `convnet`, the
example. JSON lines come first, then a table with the counts of all processes. The counts do not depend on load.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tabulate import tabulate

from frx_graph.measure.page_faults import PageFaults
from frx_graph.support.allocator import POOLING_VARIABLES, Allocation, read_allocation
from frx_graph.trial_worker.launch import start_arm
from frx_graph.trials.arm_messages import (
    CountedFaults,
    CountFaults,
    Load,
    Loaded,
    TargetWorkload,
    Warm,
    Warmed,
    ask,
)

NETWORKS = ("resnet18", "unet_plain", "mobilenet_v2", "vit_small", "convnet")
ALLOCATIONS: Mapping[str, Mapping[str, str]] = {"default": {}, "pooled": POOLING_VARIABLES}
WARM_STEPS = 10
_HERE = Path(__file__).resolve().parent
_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Counted:
    """The faults of each call of one process."""

    network: str
    allocation: str
    faults_per_call: int
    bytes_per_call: int
    calls: tuple[int, ...]


def workload(network: str) -> TargetWorkload:
    """The network as `frx advise` takes it."""
    if network == "convnet":
        return TargetWorkload(f"{_HERE.parent / 'examples' / 'convnet.py'}:build")
    return TargetWorkload(f"{_HERE / 'zoo.py'}:{network}", shape=(("batch", 1),))


def count(network: str, allocation: str, inner: str) -> Counted:
    """The faults in a fresh process."""
    with start_arm(environment=ALLOCATIONS[allocation]) as arm:
        ask(arm, Load(workload(network), False, inner, 0, random=False), Loaded, _SECONDS)
        ask(arm, Warm(WARM_STEPS), Warmed, _SECONDS)
        faults = ask(arm, CountFaults(), CountedFaults, _SECONDS).faults
    if faults is None:
        sys.exit("this system does not count page faults")
    return counted(network, allocation, faults)


def counted(network: str, allocation: str, faults: PageFaults) -> Counted:
    """The record of one process."""
    return Counted(network, allocation, faults.per_call, faults.bytes_per_call, faults.calls)


def table(found: Sequence[Counted]) -> str:
    """A row a network, with the counts of its processes in order of size."""

    def rows() -> Iterator[list[str]]:
        for network in dict.fromkeys(one.network for one in found):
            row = [network]
            for allocation in ALLOCATIONS:
                of = sorted(
                    (one for one in found if (one.network, one.allocation) == (network, allocation)),
                    key=lambda one: one.faults_per_call,
                )
                row.append(" · ".join(f"{one.faults_per_call:,}" for one in of))
                row.append(f"{max((one.bytes_per_call for one in of), default=0) / 2**20:.1f}")
            yield row

    headers = ["network"]
    for allocation in ALLOCATIONS:
        headers += [f"faults a call, {allocation}", "most MiB"]
    return tabulate(rows(), headers=headers, tablefmt="github", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS, help="networks of the zoo, or convnet")
    parser.add_argument("--processes", type=int, default=3, help="of each network and allocation")
    parser.add_argument("--inner", default="inductor")
    arguments = parser.parse_args()
    if read_allocation() is not Allocation.DEFAULT:
        sys.exit("the environment has chosen an allocator, or the C library is not glibc")
    found = []
    for network in arguments.networks:
        for allocation in ALLOCATIONS:
            for _ in range(arguments.processes):
                found.append(count(network, allocation, arguments.inner))
                print(json.dumps(asdict(found[-1])), flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
