"""Times several ways to run one step against each other: interleaved blocks, and what the samples say.

In each round every arm runs one block of steps, and the fastest of them is its sample: what slows single steps down is
not the arm but the machine's other programs (as `timeit`'s documentation argues). The order of a round is rotated from
pair of rounds to pair, and turned round within a pair (ABBA), so that no arm always runs first, and none always after
the same other one. A ratio compares two blocks of one round, so that what a shared machine does slowly cancels out.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from scipy import stats

from frx_graph.measure.machine.disturbance import watch_disturbance

Step = Callable[[], object]


class Clock(Protocol):
    """Runs a step `count` times and says how many seconds the fastest took."""

    def __call__(self, step: Step, count: int) -> float: ...


def cpu_clock(step: Step, count: int, now: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of wall clock."""
    marks = [now()]
    for _ in range(count):
        step()
        marks.append(now())
    return min(end - begin for begin, end in itertools.pairwise(marks))


def cuda_clock(step: Step, count: int) -> float:
    """Seconds between events of the current stream, which is empty at the first and after the last."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return min(float(begin.elapsed_time(end)) / 1e3 for begin, end in itertools.pairwise(marks))


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds of one step by arm, one number a round; `disturbed` rounds are those during which other programs held the
    processors. `block` is the number of steps that a sample is the fastest of."""

    seconds: Mapping[str, tuple[float, ...]]
    block: int
    disturbed: int


def round_order(arms: Sequence[str], number: int) -> tuple[str, ...]:
    """The order of round `number`, counted from 0."""
    turned = number // 2 % len(arms)
    order = (*arms[turned:], *arms[:turned])
    return order if number % 2 == 0 else order[::-1]


def block_length(step_seconds: float, block_seconds: float, longest: int = 50) -> int:
    """How many steps fill a block: at least 1, at most `longest`."""
    return min(longest, max(1, math.ceil(block_seconds / max(step_seconds, 1e-9))))


def interleave(
    steps: Mapping[str, Step],
    rounds: int,
    block_seconds: float,
    clock: Clock,
    patience_s: float = 0.0,
    watch: Callable[[], contextlib.AbstractContextManager[Callable[[], bool]]] = watch_disturbance,
    now: Callable[[], float] = time.monotonic,
) -> Samples:
    """Seconds of every step in `rounds` rounds. All arms run blocks of one length, which the first arm's step decides.

    Where other programs disturb rounds, more are run for up to `patience_s` seconds; undisturbed rounds are kept first.
    """
    length = block_length(clock(next(iter(steps.values())), 3), block_seconds)
    quiet: list[dict[str, float]] = []
    disturbed: list[dict[str, float]] = []
    until: float | None = None
    while len(quiet) < rounds:
        number = len(quiet) + len(disturbed)
        if number >= rounds:
            until = now() + patience_s if until is None else until
            if now() >= until:
                break
        with watch() as was_disturbed:
            seconds = {name: clock(steps[name], length) for name in round_order(list(steps), number)}
            (disturbed if was_disturbed() else quiet).append(seconds)
    kept = (quiet + disturbed)[:rounds]
    return Samples(
        seconds={name: tuple(seconds[name] for seconds in kept) for name in steps},
        block=length,
        disturbed=len(kept) - len(quiet),
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast as the reference: the median over rounds, and an interval that holds the true median with
    95 % confidence (None below six rounds, which cannot tell)."""

    median: float
    interval: tuple[float, float] | None


def ratio(reference: Sequence[float], arm: Sequence[float]) -> Ratio:
    """Speed of `arm` over that of `reference`; their samples are of the same rounds."""
    by_round = [one / other for one, other in zip(reference, arm, strict=True)]
    return Ratio(statistics.median(by_round), median_interval(by_round))


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """The distribution-free interval for a median: two order statistics, chosen by the binomial distribution (Conover,
    Practical Nonparametric Statistics, 3.2). None where even all values do not give that confidence."""
    ordered = sorted(values)
    rank = int(stats.binom.ppf((1 - confidence) / 2, len(ordered), 0.5))
    if rank == 0:
        return None
    return ordered[rank - 1], ordered[-rank]


def geometric_mean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return statistics.geometric_mean(values) if values else None


@contextlib.contextmanager
def no_recompilation() -> Iterator[None]:
    """Inside, a recompilation is an error: a measured step must not hold one."""
    with torch.compiler.set_stance("fail_on_recompile"):  # type: ignore[no-untyped-call, attr-defined, unused-ignore]
        yield
