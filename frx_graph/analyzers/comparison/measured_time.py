"""Decide which side is faster by the times of Nsight Compute.

A kernel that both sides launch as often does the same work. Otherwise times can be read in several ways: all kernels,
the matched ones, one launch of each. If these disagree, the winner is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    pairs = matching.pairs
    ours = [*(pair.a for pair in pairs), *matching.only_a]
    theirs = [*(pair.b for pair in pairs), *matching.only_b]
    found = [_read_sums("all kernels", ours, theirs)] if whole_runs or pairs else []
    paired = _read_sums("matched kernels", [pair.a for pair in pairs], [pair.b for pair in pairs])
    if paired is not None and not whole_runs:
        if not matching.complete:
            found.append(paired)
        if any(pair.a.launches != pair.b.launches for pair in pairs):
            found.append(
                Reading(
                    "matched kernels, a launch of each",
                    math.fsum(_scale_time(pair.a, pair.b) for pair in pairs),
                    math.fsum(_scale_time(pair.b, pair.a) for pair in pairs),
                )
            )
    readings = tuple(one for one in found if one is not None and one.a > 0 and one.b > 0)
    if not readings:
        return None
    time = MeasuredTime(Winner.UNKNOWN, readings, *_name_gpus(ours, theirs))
    winners = {reading.winner for reading in readings}
    return replace(time, winner=winners.pop()) if len(winners) == 1 and time.same_gpus else time


def _read_sums(of: str, a: Sequence[KernelSummary], b: Sequence[KernelSummary]) -> Reading | None:
    """Return the total times; None if a side has no kernel, or one without a time."""
    in_a = [kernel.seconds for kernel in a if kernel.seconds is not None]
    in_b = [kernel.seconds for kernel in b if kernel.seconds is not None]
    if not a or not b or len(in_a) < len(a) or len(in_b) < len(b):
        return None
    return Reading(of, math.fsum(in_a), math.fsum(in_b))


def _scale_time(kernel: KernelSummary, other: KernelSummary) -> float:
    """Return the seconds that the mean number of both kernels' launches would take."""
    return (kernel.seconds or 0.0) / kernel.launches * ((kernel.launches + other.launches) / 2)


def _name_gpus(a: Sequence[KernelSummary], b: Sequence[KernelSummary]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Name the GPUs, or else their compute capabilities, if both sides have them."""
    names = [sorted({kernel.device_name for kernel in side} - {""}) for side in (a, b)]
    if not all(names):
        names = [sorted({kernel.compute_capability for kernel in side} - {""}) for side in (a, b)]
    return tuple(names[0]), tuple(names[1])
