"""What it costs that ranks agree on a plan: measured at 2, 4 and 8 gloo ranks, simulated with those constants beyond.

    python benchmarks/rank_agreement.py [--rounds 40] [--json FILE]

Measured: how long an agreement takes, from the first rank that asks to the last that knows, for a plan of a few
kilobytes and one of a megabyte; what one question to the store takes when nobody else asks, and when all ranks do. The
store, a `TCPStore`, is one thread that answers one question after the other, so the rest is arithmetic: simulated are
the questions of each rank in the order in which it asks them, the time that the store needs for each, and the way there
and back. What the simulation says of the measured sizes stands beside what was measured.
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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import distributed as dist
from torch._C._distributed_c10d import TCPStore

from frx_graph.agreement import agree

MEASURED = (2, 4, 8)
SIMULATED = (2, 4, 8, 64, 512, 1024, 4096, 16_384)
SMALL, LARGE = 4 << 10, 1 << 20
"""Bytes of a plan: that of a network with a hundred convolutions, and more than any has."""
PROBES = 400
SECONDS = 120.0
WAY_SECONDS = 100e-6
"""There and back between two machines of a cluster over TCP; on loopback it is measured."""


Question = tuple[float, str | None, str | None]
"""What a rank asks: seconds of the store, what has to be written before it is answered, what it writes."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Seconds: `question` of the store's thread for a small question, `byte` for each byte of an answer, `connection`
    for a new connection, `way` there and back."""

    question: float
    byte: float
    connection: float
    way: float


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
            start = time.perf_counter()
            said = agree(partial(bytes, plan), fine, about=f"{size} {round_}", seconds=SECONDS)
            found.setdefault(f"agreement of {size}", []).append(time.perf_counter() - start)
            assert said.plan == plan, said
    asking: Any = store.clone()
    dist.barrier()
    found["all ask"] = list(_probes(asking, rank))
    dist.barrier()
    if rank == world - 1:
        found["one asks"] = list(_probes(asking, rank))
        asking.set("large", "x" * LARGE)
        found["one asks for much"] = [_timed(lambda: asking.get("large")) for _ in range(50)]
        found["one connects"] = [_timed(lambda: store.clone().add("connected", 1)) for _ in range(50)]
    dist.barrier()
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


def _probes(store: Any, rank: int) -> Iterator[float]:
    for number in range(PROBES):
        yield _timed(partial(store.add, f"probe {rank} {number % 10}", 1))


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(world: int, rounds: int) -> dict[str, float]:
    """Medians of `world` ranks: of an agreement the slowest rank's time counts."""
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
    found["all ask"] = statistics.median(time for rank in ranks for time in rank["all ask"])
    for name in ("one asks", "one asks for much", "one connects"):
        found[name] = statistics.median(ranks[-1][name])
    return found


def constants_of(measured: dict[int, dict[str, float]]) -> Constants:
    """When all of many ask at once, each waits for the answers to all others: the store's time is what one more rank
    adds. The way is what is left of a question that nobody else delays."""
    least, most = min(measured), max(measured)
    question = (measured[most]["all ask"] - measured[least]["all ask"]) / (most - least)
    alone = statistics.median(each["one asks"] for each in measured.values())
    question = min(max(question, 0.05 * alone), alone)
    much = statistics.median(each["one asks for much"] for each in measured.values())
    connection = statistics.median(each["one connects"] for each in measured.values())
    return Constants(question, max(much - alone, 0.0) / LARGE, max(connection - alone, 0.0), alone - question)


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
    cluster = Constants(here.question, here.byte, here.connection, WAY_SECONDS)
    simulated = [
        {
            "ranks": world,
            "plan_bytes": size,
            "measured_s": measured.get(world, {}).get(f"agreement of {size}"),
            "simulated_here_s": simulate(world, size, here),
            "simulated_cluster_s": simulate(world, size, cluster),
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
    print(tabulate([[f"{value * 1e6:.3g} us"] for value in asdict(here).values()], showindex=list(asdict(here))))
    print(tabulate(simulated, headers="keys", floatfmt=".3g"))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
