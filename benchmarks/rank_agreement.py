"""What it costs that ranks agree on a plan: measured at 2, 4 and 8 gloo ranks, simulated with those constants beyond.

    python benchmarks/rank_agreement.py [--rounds 40] [--json FILE]

Measured: how long an agreement takes, from the first rank that asks to the last that knows, for a plan of a few
kilobytes and one of a megabyte; how much processor time a rank needs for it; how long a question to the store takes,
and how much processor time the store needs for one, for a byte of an answer, and for a connection. The store, a
`TCPStore`, is one thread that answers one question after the other, so the rest is arithmetic: simulated are the
questions of each rank in the order in which it asks them, the time that the store needs for each, and the way there and
back; then what a rank itself needs is added, here for as many ranks as share a processor. What the simulation says of
the measured sizes stands beside what was measured.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import distributed as dist
from torch._C._distributed_c10d import TCPStore

from frx_graph.distributed.consensus import agree

MEASURED = (2, 4, 8)
SIMULATED = (2, 4, 8, 64, 512, 1024, 4096, 16_384)
SMALL, LARGE = 4 << 10, 1 << 20
"""Bytes of a plan: that of a network with a hundred convolutions, and more than any has."""
PROBES, FEW_PROBES = 2000, 50
SECONDS = 120.0
WAY_SECONDS = 100e-6
"""There and back between two machines of a cluster over TCP; on loopback it is measured."""


Question = tuple[float, str | None, str | None]
"""What a rank asks: seconds of the store, what has to be written before it is answered, what it writes."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Seconds: `question` of the store's thread for a small question, `byte` for each byte of an answer, `connection`
    for a new connection, `way` there and back, `rank` of a rank's processor for a plan of so many bytes."""

    question: float
    byte: float
    connection: float
    way: float
    rank: dict[int, float]


def fine(_plan: bytes) -> None:
    """No objection."""
    return


def run_rank(rank: int, world: int, rounds: int, folder: str) -> None:
    """One rank: its times as JSON."""
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", _port(folder, rank), world, rank == 0, timedelta(seconds=300))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found: dict[str, list[float]] = {}
    for size in (SMALL, LARGE):
        plan = b"p" * size
        for round_ in range(rounds):
            dist.barrier()
            start, used = time.perf_counter(), time.process_time()
            said = agree(partial(bytes, plan), fine, about=f"{size} {round_}", seconds=SECONDS)
            found.setdefault(f"agreement of {size}", []).append(time.perf_counter() - start)
            found.setdefault(f"processor for {size}", []).append(time.process_time() - used)
            assert said.plan == plan, said
    asking: Any = store.clone()
    if rank == 0:
        asking.set("large", "x" * LARGE)
    ask = partial(asking.add, f"probe {rank}", 1)
    probes: dict[str, tuple[Callable[[], object], int]] = {
        "one asks": (ask, PROBES),
        "one asks for much": (partial(asking.get, "large"), FEW_PROBES),
        "one connects": (lambda: store.clone().add(f"probe {rank}", 1), FEW_PROBES),
    }
    for name, (probe, count) in probes.items():
        dist.barrier()
        used = time.process_time()
        if rank == world - 1:
            found[name] = [_timed(probe) for _ in range(count)]
        dist.barrier()
        if rank == 0:
            # The store is a thread of this process, whose other threads wait meanwhile.
            found[f"store where {name}"] = [(time.process_time() - used) / count]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _port(folder: str, rank: int) -> int:
    """A free one, which the first rank finds and the others read."""
    path = Path(folder, "port")
    if rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        path.with_suffix(".new").write_text(str(port))
        path.with_suffix(".new").rename(path)
        return port
    while not path.exists():
        time.sleep(0.01)
    return int(path.read_text())


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(world: int, rounds: int) -> dict[str, float]:
    """Medians of `world` ranks: of an agreement the slowest rank's time counts, and the processor time of those that
    are not the store as well."""
    with tempfile.TemporaryDirectory() as folder:
        starting = get_context("spawn")
        processes = [starting.Process(target=run_rank, args=(rank, world, rounds, folder)) for rank in range(world)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        ranks = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]
    found = {}
    for size in (SMALL, LARGE):
        slowest = [max(each) for each in zip(*(rank[f"agreement of {size}"] for rank in ranks), strict=True)]
        found[f"agreement of {size}"] = statistics.median(slowest)
        found[f"processor for {size}"] = statistics.median(
            used for rank in ranks[1:] for used in rank[f"processor for {size}"]
        )
    for name in ("one asks", "one asks for much", "one connects"):
        found[name] = statistics.median(ranks[-1][name])
        (found[f"store where {name}"],) = ranks[0][f"store where {name}"]
    return found


def constants_of(measured: dict[int, dict[str, float]]) -> Constants:
    """The store's are its processor time, medians over the sizes; the way is what is left of a question that nobody
    else delays. What a rank needs is that of the fewest: more of them wait for each other's caches here."""

    def median(name: str) -> float:
        return statistics.median(each[name] for each in measured.values())

    question = median("store where one asks")
    fewest = measured[min(measured)]
    return Constants(
        question=question,
        byte=max(median("store where one asks for much") - question, 0.0) / LARGE,
        connection=max(median("store where one connects") - question, 0.0),
        way=max(median("one asks") - question, 0.0),
        rank={size: fewest[f"processor for {size}"] for size in (SMALL, LARGE)},
    )


def simulate(world: int, plan_bytes: int, constants: Constants) -> float:
    """Seconds from the first question to the last answer. All ranks begin at once; the store answers in the order in
    which questions arrive, and whoever waits for a register asks again when it was written."""
    small, way = constants.question, constants.way
    answer = small + 4 / 3 * plan_bytes * constants.byte  # base 64
    begin = constants.connection
    first: list[Question] = [(small + begin, None, None), (answer, None, "offered"), (answer, None, None)]
    other: list[Question] = [(small + begin, None, None), (small, "offered", None), (answer, None, None)]
    for register in ("validated", "acknowledged"):
        votes: list[Question] = [
            (small, None, None),
            (small, None, f"vote {register}"),
            (small, register, None),
            (small, None, None),
        ]
        first, other = first + votes, other + votes
    asks = [first, *([other] * (world - 1))]
    written: set[str] = set()
    votes_in: dict[str, int] = {}
    waiting: dict[str, list[int]] = {}
    arriving = [(way / 2, rank) for rank in range(world)]
    heapq.heapify(arriving)
    at = [0] * world
    free, last = 0.0, 0.0
    while arriving:
        arrives, rank = heapq.heappop(arriving)
        seconds, needs, writes = asks[rank][at[rank]]
        free = max(free, arrives) + seconds
        if needs is not None and needs not in written:
            waiting.setdefault(needs, []).append(rank)
            continue
        woken: list[int] = []
        if writes is not None and writes.startswith("vote "):
            register = writes.removeprefix("vote ")
            votes_in[register] = votes_in.get(register, 0) + 1
            if votes_in[register] == world:
                written.add(register)
                free += 2 * small  # the last voter writes what was decided
                woken = waiting.pop(register, [])
        elif writes is not None:
            written.add(writes)
            woken = waiting.pop(writes, [])
        for each in (rank, *woken):
            if each != rank:
                free += small  # to wake it
            last = max(last, free + way / 2)
            at[each] += 1
            if at[each] < len(asks[each]):
                heapq.heappush(arriving, (free + way, each))
    return last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    measured = {world: measure(world, options.rounds) for world in MEASURED}
    here = constants_of(measured)
    cluster = replace(here, way=WAY_SECONDS)
    sharing = os.cpu_count() or 1
    simulated = [
        {
            "ranks": world,
            "plan_bytes": size,
            "measured_s": measured.get(world, {}).get(f"agreement of {size}"),
            "simulated_here_s": simulate(world, size, here) + max(1.0, world / sharing) * here.rank[size],
            "simulated_cluster_s": simulate(world, size, cluster) + cluster.rank[size],
        }
        for size in (SMALL, LARGE)
        for world in SIMULATED
    ]
    document = {
        "constants": asdict(here),
        "measured": measured,
        "simulated": simulated,
        "torch": torch.__version__,
        "logical_cpus": os.cpu_count(),
        "load_average_before": round(load, 2),
        "python": sys.version.split()[0],
    }
    print(json.dumps(document["constants"]))
    print(tabulate(simulated, headers="keys", floatfmt=".3g"))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
