"""List facts that contradict the verdict, or that readers need to trust it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frx_graph.analyzers.comparison.matching import Change, MatchedBy, Winner, pick_lesser
from frx_graph.analyzers.comparison.ncu_diff import NcuDiff
from frx_graph.analyzers.comparison.scorecard import Basis, Dimension, Verdict
from frx_graph.analyzers.comparison.static_diff import PtxDiff, SourceDiff

OCCUPANCY_POINTS = 10.0
"""Shift of achieved occupancy that should show in the time, one way or the other."""
CLOCK_BAND = 0.05
"""Nsight Compute locks clocks by default; then they agree within a percent."""
_SAME = 1e-9
_DECIDED = (Winner.A, Winner.B)


class Kind(enum.StrEnum):
    """Kinds of conflicts."""

    TIME_AGAINST_SCORES = "time_against_scores"
    DIMENSIONS = "dimensions_disagree"
    REGISTERS_AGAINST_OCCUPANCY = "registers_against_occupancy"
    SPILLS_AGAINST_OCCUPANCY = "spills_against_occupancy"
    OCCUPANCY_SHIFT = "large_occupancy_shift"
    SLOWER_KERNELS = "kernels_slower_than_all"
    CLOCKS = "clocks_differ"
    NOT_MATCHED = "kernels_not_matched"
    OTHER_NAMES = "kernels_of_other_names"
    LAUNCHES = "launch_counts_differ"
    GPUS = "gpus_differ"


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """A conflict. `winner` is the side that is better by the fact named first, or UNKNOWN if neither is. `only_a` and
    `only_b` are names. `kernel_a` and `kernel_b` are the kernels in conflict."""

    kind: Kind
    winner: Winner = Winner.UNKNOWN
    changes: tuple[Change, ...] = ()
    kernel_a: str | None = None
    kernel_b: str | None = None
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()


def find_tradeoffs(
    verdict: Verdict,
    dimensions: Sequence[Dimension],
    source: SourceDiff | None,
    ptx: PtxDiff | None,
    ncu: NcuDiff | None,
) -> tuple[Tradeoff, ...]:
    """List all conflicts, those about the verdict first."""
    return (
        *_find_score_conflicts(verdict, dimensions),
        *(() if ncu is None else _find_measured_conflicts(verdict, ncu)),
        *(() if ptx is None or ncu is None else _find_spill_conflicts(ptx, ncu)),
        *_find_unmatched_kernels(source, ptx, ncu),
    )


def _find_score_conflicts(verdict: Verdict, dimensions: Sequence[Dimension]) -> Iterator[Tradeoff]:
    if verdict.basis is Basis.TIME and verdict.score_winner not in (verdict.winner, Winner.UNKNOWN):
        scores = Change("score", "Weighted score", "", verdict.score_a, verdict.score_b)
        yield Tradeoff(Kind.TIME_AGAINST_SCORES, verdict.winner, (scores,))
    won = [one for one in dimensions if one.winner in _DECIDED]
    if len({one.winner for one in won}) == 2:
        changes = tuple(Change(one.name, one.name, "", one.score_a, one.score_b) for one in won)
        yield Tradeoff(Kind.DIMENSIONS, changes=changes)


def _find_measured_conflicts(verdict: Verdict, ncu: NcuDiff) -> Iterator[Tradeoff]:
    time = verdict.time
    if time is not None and not time.same_gpus:
        yield Tradeoff(Kind.GPUS, only_a=time.gpus_a, only_b=time.gpus_b)
    for kernel in ncu.kernels:
        known = {change.metric: change for change in kernel.changes}
        names = kernel.kernel_a, kernel.kernel_b
        registers, occupancy = known.get("registers_per_thread"), known.get("achieved_occupancy")
        if registers is not None and occupancy is not None:
            fewer = pick_lesser(registers.a, registers.b, _SAME)
            if _is_conflict(fewer, _pick_lower_occupancy(occupancy)):
                yield Tradeoff(Kind.REGISTERS_AGAINST_OCCUPANCY, fewer, (registers, occupancy), *names)
        if occupancy is not None and time is None and abs(occupancy.delta or 0.0) >= OCCUPANCY_POINTS:
            yield Tradeoff(Kind.OCCUPANCY_SHIFT, _swap_side(_pick_lower_occupancy(occupancy)), (occupancy,), *names)
        clock = known.get("sm_frequency")
        if clock is not None and (slower := pick_lesser(clock.a, clock.b, CLOCK_BAND)) in _DECIDED:
            yield Tradeoff(Kind.CLOCKS, _swap_side(slower), (clock,), *names)
        if verdict.winner in _DECIDED and kernel.faster is _swap_side(verdict.winner):
            seconds = Change("seconds", "Time of all launches", "s", kernel.seconds_a, kernel.seconds_b)
            yield Tradeoff(Kind.SLOWER_KERNELS, kernel.faster, (seconds,), *names)
        if kernel.launches_a != kernel.launches_b:
            launches = Change("launches", "Launches", "", kernel.launches_a, kernel.launches_b)
            yield Tradeoff(Kind.LAUNCHES, Winner.UNKNOWN, (launches,), *names)


def _find_spill_conflicts(ptx: PtxDiff, ncu: NcuDiff) -> Iterator[Tradeoff]:
    """Return the notes on assembly for a single kernel only: PTX has mangled names, so several kernels cannot be
    matched here."""
    if len(ptx.kernels) != 1 or len(ncu.kernels) != 1:
        return
    stores = next(one for one in ptx.kernels[0].changes if one.metric == "spill_stores")
    occupancy = next((one for one in ncu.kernels[0].changes if one.metric == "achieved_occupancy"), None)
    fewer = pick_lesser(stores.a, stores.b, _SAME)
    if occupancy is not None and _is_conflict(fewer, _pick_lower_occupancy(occupancy)):
        names = ncu.kernels[0].kernel_a, ncu.kernels[0].kernel_b
        yield Tradeoff(Kind.SPILLS_AGAINST_OCCUPANCY, fewer, (stores, occupancy), *names)


def _find_unmatched_kernels(source: SourceDiff | None, ptx: PtxDiff | None, ncu: NcuDiff | None) -> Iterator[Tradeoff]:
    """Return the measured layer, or else the most exact one."""
    diff = ncu or ptx or source
    if diff is None:
        return
    if diff.only_a or diff.only_b:
        yield Tradeoff(Kind.NOT_MATCHED, only_a=diff.only_a, only_b=diff.only_b)
    for kernel in diff.kernels:
        if kernel.matched_by is MatchedBy.ONLY_KERNEL:
            yield Tradeoff(Kind.OTHER_NAMES, kernel_a=kernel.kernel_a, kernel_b=kernel.kernel_b)


def _pick_lower_occupancy(occupancy: Change) -> Winner:
    """Return the side with less, by a point at least."""
    a, b = occupancy.a, occupancy.b
    return Winner.TIE if a is not None and b is not None and abs(b - a) < 1.0 else pick_lesser(a, b, 0.0)


def _is_conflict(better: Winner, worse: Winner) -> bool:
    return better is worse and better in _DECIDED


def _swap_side(winner: Winner) -> Winner:
    return {Winner.A: Winner.B, Winner.B: Winner.A}.get(winner, Winner.UNKNOWN)
