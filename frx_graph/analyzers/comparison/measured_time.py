"""Decide which side is faster by the times of Nsight Compute.

A kernel that both sides launch as often does the same work. Otherwise times can be read in several ways: all kernels,
the matched ones, one launch of each. If these disagree, the winner is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from frx_graph.analyzers.comparison.matching import Matching, Winner, pick_lesser
from frx_graph.analyzers.kernels.kernel_totals import KernelSummary

TIME_BAND = 0.02
"""Times within this band are equal. Nsight Compute times a launch once, at locked clocks, and gives no interval."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds of both sides, for the launches that `of` names."""

    of: str
    a: float
    b: float

    @property
    def winner(self) -> Winner:
        """Return the faster side."""
        return pick_lesser(self.a, self.b, TIME_BAND)


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """`winner` is UNKNOWN if the readings disagree or the GPUs differ."""

    winner: Winner
    readings: tuple[Reading, ...]
    gpus_a: tuple[str, ...]
    gpus_b: tuple[str, ...]

    @property
    def same_gpus(self) -> bool:
        """Return True unless the files name different GPUs."""
        return not self.gpus_a or not self.gpus_b or self.gpus_a == self.gpus_b


def compare_times(matching: Matching[KernelSummary], *, whole_runs: bool) -> MeasuredTime | None:
    """Return the faster side, or None unless both sides have times. `whole_runs` means that both sides have every
    kernel of a run, so their totals are for the same work."""
    readings = tuple(reading for reading in _read_times(matching, whole_runs) if reading.a > 0 and reading.b > 0)
    if not readings:
        return None
    ours = [pair.a for pair in matching.pairs] + list(matching.only_a)
    theirs = [pair.b for pair in matching.pairs] + list(matching.only_b)
    gpus = _name_gpus(ours, theirs)
    found = MeasuredTime(Winner.UNKNOWN, readings, *gpus)
    winners = {reading.winner for reading in readings}
    if len(winners) > 1 or not found.same_gpus:
        return found
    return MeasuredTime(winners.pop(), readings, *gpus)


def _read_times(matching: Matching[KernelSummary], whole_runs: bool) -> Iterator[Reading]:
    pairs = matching.pairs
    total_a = _sum_seconds([*(pair.a for pair in pairs), *matching.only_a])
    total_b = _sum_seconds([*(pair.b for pair in pairs), *matching.only_b])
    if (whole_runs or pairs) and total_a is not None and total_b is not None:
        yield Reading("all kernels", total_a, total_b)
    if whole_runs:
        return
    paired_a, paired_b = _sum_seconds(pair.a for pair in pairs), _sum_seconds(pair.b for pair in pairs)
    if paired_a is None or paired_b is None:
        return
    if not matching.complete:
        yield Reading("matched kernels", paired_a, paired_b)
    if any(pair.a.launches != pair.b.launches for pair in pairs):
        means = [(pair, (pair.a.launches + pair.b.launches) / 2) for pair in pairs]
        yield Reading(
            "matched kernels, a launch of each",
            math.fsum((pair.a.seconds or 0.0) / pair.a.launches * mean for pair, mean in means),
            math.fsum((pair.b.seconds or 0.0) / pair.b.launches * mean for pair, mean in means),
        )


def _sum_seconds(kernels: Iterable[KernelSummary]) -> float | None:
    found = [kernel.seconds for kernel in kernels]
    known = [seconds for seconds in found if seconds is not None]
    return math.fsum(known) if found and len(known) == len(found) else None


def _name_gpus(a: Iterable[KernelSummary], b: Iterable[KernelSummary]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Name the GPUs, or else their compute capabilities, if both sides have them."""
    ours, theirs = list(a), list(b)
    names = [sorted({kernel.device_name for kernel in side if kernel.device_name}) for side in (ours, theirs)]
    if not all(names):
        names = [sorted({kernel.compute_capability for kernel in side} - {""}) for side in (ours, theirs)]
    return tuple(names[0]), tuple(names[1])
