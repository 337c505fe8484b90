"""Compare the times of two programs by alternating runs of whole processes.

The programs are run in the quads of `frx_graph.trials.schedule`, each block one run of a fresh process, and compared by
the trimmed t-test of `frx_graph.trials.statistics` over the quads' log ratios. Nothing is promoted here, so there is no
minimum to reach. The verdict only says whether a difference was shown.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.trials.samples import MeasuredQuad
from frx_graph.trials.schedule import Arm, Quad, arrange_quads
from frx_graph.trials.statistics import compute_trimmed_interval, convert_to_ratio

RUNS_PER_QUAD = 2
"""Runs of each program."""
FEWEST_RUNS = 2 * RUNS_PER_QUAD
"""Runs of each program: an interval takes two quads."""
CONFIDENCE = 0.99
"""Confidence of the ratio's interval, and so of the verdict: one in a hundred equal programs may be called different,
half of these faster. docs/internals/trials.md has the observed rate."""


class Direction(enum.StrEnum):
    """The result for the second program."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE_SHOWN = "no difference shown"


@dataclass(frozen=True, slots=True)
class ProgramComparison:
    """Ratios are times of the first program over times of the second: above 1 the second is faster."""

    before_seconds: tuple[float, ...]
    """In the order of the runs, like those of the other program."""
    after_seconds: tuple[float, ...]
    ratio_median: float
    ci_low: float
    ci_high: float
    """Infinite if the quads are too few, or vary too much, for a bound."""
    quads: int

    @property
    def speedup(self) -> float:
        """The first program's median time over the second's."""
        return statistics.median(self.before_seconds) / statistics.median(self.after_seconds)

    @property
    def direction(self) -> Direction:
        """The verdict, from the interval alone."""
        if self.ci_low > 1:
            return Direction.FASTER
        return Direction.SLOWER if self.ci_high < 1 else Direction.NO_DIFFERENCE_SHOWN


def make_program_schedule(runs: int) -> tuple[Quad, ...]:
    """Return the quads of `runs` runs. Raises `ValueError` for an odd number, or one below `FEWEST_RUNS`."""
    if runs < FEWEST_RUNS or runs % RUNS_PER_QUAD:
        raise ValueError(f"{runs} runs of each program")
    return arrange_quads(1, runs // RUNS_PER_QUAD, seed=0)


def compare_programs(quads: Sequence[MeasuredQuad]) -> ProgramComparison:
    """Compare the programs by at least two quads."""
    log_ratios = [quad.log_ratio for quad in quads]
    low, high = compute_trimmed_interval(log_ratios, (1 - CONFIDENCE) / 2)
    seconds: dict[Arm, list[float]] = {arm: [] for arm in Arm}
    for quad in quads:
        for block in quad.blocks:
            seconds[block.arm] += block.seconds
    return ProgramComparison(
        before_seconds=tuple(seconds[Arm.BASELINE]),
        after_seconds=tuple(seconds[Arm.CANDIDATE]),
        ratio_median=math.exp(statistics.median(log_ratios)),
        ci_low=math.exp(low),
        ci_high=convert_to_ratio(high),
        quads=len(quads),
    )
