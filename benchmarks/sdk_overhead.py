"""What it costs a training script to tell of its run: nanoseconds a step, everything included.

    python benchmarks/sdk_overhead.py [--quick] [--json FILE]

Bounds: under 20 µs a step, and under 1 % of a step of 5 ms. Exit code 1 when one is broken. Each step has a batch of
two tensors from an instrumented loader, a model with as many parameters as ResNet-50, four spans, a loss and a metric.
Its own work is of two kinds. `python` never lets go of the interpreter's lock, which is the worst case: the thread that
writes has to take it away from the program. `products` are matrix products of torch, which lets go of the lock in each
operator, as a training step does.

Blocks of steps with and without the SDK alternate. A block's time is that of the wall clock from its first step to
when all its events are in the file, so the writing thread's share is in it. What is added is the median, over pairs of
neighbouring blocks, of the difference; single steps are shown by their median and 99th percentile. Beside it stands the
processor time that is added, of all threads, which other programs on the machine disturb less; only wall clock is
judged. `--quick` runs few steps and judges nothing: it shows that the benchmark still works.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor, nn

from frx_graph.runs.sdk.session import AutopilotSession, step_context

ADDED_NS_BOUND = 20_000
SHARE_BOUND = 0.01
LONG_STEP_NS = 5_000_000
CONVOLUTIONS = 53
"""ResNet-50's, each with a normalisation, and a linear layer at the end: 161 parameters."""

TEXT = b"x" * 16_384

FACTOR = torch.ones(128, 128)
PRODUCT = torch.empty(128, 128)

Batch = tuple[Tensor, Tensor]
Work = Callable[[int], None]


@dataclass(frozen=True)
class StepCost:
    """Steps whose own work takes about `work_ns`: times of single steps without and with the SDK, and what it adds on
    average, in nanoseconds."""

    work: str
    work_ns: int
    steps: int
    without_median_ns: float
    without_p99_ns: float
    with_median_ns: float
    with_p99_ns: float
    added_ns: float
    added_cpu_ns: float

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.work_ns / 1e6:g} ms of {self.work}"

    @property
    def share(self) -> float:
        """What is added, of the step without."""
        return self.added_ns / self.without_median_ns


class Loader:
    """Gives the same batch again and again, and has what a loader of torch tells of itself."""

    num_workers, prefetch_factor, pin_memory, persistent_workers, batch_size = 4, 2, True, True, 32

    def __init__(self, batch: Batch, length: int) -> None:
        self._batch = batch
        self._length = length

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self._length):
            yield self._batch

    def __len__(self) -> int:
        return self._length


def network() -> nn.Module:
    """As many parameters, in as many modules, as ResNet-50 has."""
    layers = [nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)) for _ in range(CONVOLUTIONS)]
    return nn.Sequential(*layers, nn.Linear(4, 4))


def spin(rounds: int) -> None:
    """A fixed amount of work that makes no objects: a loop that counts takes longer or shorter by a tenth, depending on
    where in memory its numbers happen to come to lie."""
    for _ in itertools.repeat(None, rounds):
        TEXT.count(b"y")


def products(rounds: int) -> None:
    """Small matrix products, an operator each."""
    for _ in itertools.repeat(None, rounds):
        torch.mm(FACTOR, FACTOR, out=PRODUCT)


WORK: dict[str, Work] = {"python": spin, "products": products}


def rounds_for(work: Work, nanoseconds: int) -> int:
    """How many rounds of the work take so long."""
    probe = 20
    took = min(_timed(lambda: work(probe)) for _ in range(50))
    return max(1, round(probe * nanoseconds / took))


def _timed(call: Callable[[], None]) -> int:
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


@dataclass(frozen=True)
class Block:
    """Times of its steps, and of the whole block by the clock and by the processor, in nanoseconds."""

    steps: list[int]
    took: int
    cpu: int


def plain_block(loader: Loader, work: Work, rounds: int) -> Block:
    """Steps without the SDK."""
    times = []
    cpu = time.process_time_ns()
    start = begun = time.perf_counter_ns()
    for _step, _batch in enumerate(loader):
        work(rounds)
        ended = time.perf_counter_ns()
        times.append(ended - start)
        start = ended
    return Block(times, time.perf_counter_ns() - begun, time.process_time_ns() - cpu)


def told_block(
    session: AutopilotSession, loader: Loader, work: Work, rounds: int, model: nn.Module, loss: Tensor
) -> Block:
    """The same steps, told of."""
    times = []
    cpu = time.process_time_ns()
    start = begun = time.perf_counter_ns()
    for step, batch in enumerate(session.instrument(loader)):
        with step_context(step, batch, model) as this:
            with session.copy_span():
                pass
            with session.forward_span():
                work(rounds)
            with session.backward_span():
                pass
            with session.optimizer_span():
                pass
            this.record(loss=loss, accuracy=0.5)
        ended = time.perf_counter_ns()
        times.append(ended - start)
        start = ended
    session.flush()
    return Block(times, time.perf_counter_ns() - begun, time.process_time_ns() - cpu)


def step_cost(session: AutopilotSession, work: str, work_ns: int, steps: int, blocks: int) -> StepCost:
    """Time `blocks` pairs of blocks of `steps` steps; the first pair is left out."""
    model, do_work = network(), WORK[work]
    rounds = rounds_for(do_work, work_ns)
    loader = Loader((torch.zeros(32, 3, 8, 8), torch.zeros(32, dtype=torch.int64)), steps)
    loss = torch.zeros((), requires_grad=True) * 2
    plain, told = [], []
    for _ in range(blocks + 1):
        plain.append(plain_block(loader, do_work, rounds))
        told.append(told_block(session, loader, do_work, rounds, model, loss))
    pairs = list(zip(plain, told, strict=True))[1:]
    return StepCost(
        work,
        work_ns,
        steps * blocks,
        *_median_and_p99([each for block, _ in pairs for each in block.steps]),
        *_median_and_p99([each for _, block in pairs for each in block.steps]),
        added_ns=statistics.median((after.took - before.took) / steps for before, after in pairs),
        added_cpu_ns=statistics.median((after.cpu - before.cpu) / steps for before, after in pairs),
    )


def _median_and_p99(times: Sequence[int]) -> tuple[float, float]:
    ordered = sorted(times)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def broken_bounds(costs: Sequence[StepCost]) -> list[str]:
    """What is above its bound."""
    broken = [
        f"{cost.title}: {cost.added_ns / 1e3:.1f} µs longer (bound {ADDED_NS_BOUND // 1000})"
        for cost in costs
        if cost.added_ns >= ADDED_NS_BOUND
    ]
    broken += [
        f"{cost.title}: {cost.share:.2%} longer (bound {SHARE_BOUND:.0%})"
        for cost in costs
        if cost.work_ns >= LONG_STEP_NS and cost.share >= SHARE_BOUND
    ]
    return broken


def measure(folder: Path, *, quick: bool) -> list[StepCost]:
    """The cost of short steps, where the thread that writes never rests, and of steps of 5 ms."""
    os.environ["FRX_RAW_TRACE_PATH"] = str(folder / "trace.jsonl")
    session = AutopilotSession.from_env()
    plans = ((100_000, 50, 2), (1_000_000, 10, 2)) if quick else ((200_000, 500, 40), (LONG_STEP_NS, 40, 60))
    threads = torch.get_num_threads()
    # Where all processors work for the program, the thread that writes takes one away from it, whatever it does.
    torch.set_num_threads(1)
    try:
        return [step_cost(session, work, *plan) for plan in plans for work in WORK]
    finally:
        torch.set_num_threads(threads)
        session.close()
        del os.environ["FRX_RAW_TRACE_PATH"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps, nothing judged")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        costs = measure(Path(folder), quick=options.quick)
    rows = [
        (
            cost.title,
            cost.steps,
            f"{cost.without_median_ns / 1e3:.1f}",
            f"{cost.without_p99_ns / 1e3:.1f}",
            f"{cost.with_median_ns / 1e3:.1f}",
            f"{cost.with_p99_ns / 1e3:.1f}",
            f"{cost.added_ns / 1e3:.2f}",
            f"{cost.share:.2%}",
            f"{cost.added_cpu_ns / 1e3:.2f}",
        )
        for cost in costs
    ]
    print(
        tabulate(
            rows,
            ("step", "steps", "median µs", "p99 µs", "median with", "p99 with", "added µs", "share", "added CPU µs"),
        )
    )
    broken = [] if options.quick else broken_bounds(costs)
    print(*broken, sep="\n", end="\n" if broken else "")
    if options.json is not None:
        figures = [{**asdict(cost), "share": cost.share} for cost in costs]
        options.json.write_text(json.dumps({"costs": figures, "broken": broken}, indent=1) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
