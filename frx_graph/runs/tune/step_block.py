"""Select the steps that count of a workload that runs only part of the time, and their durations.

A step lasts from the end of the one before to its own end: what the program waits for its next batch is part of it. A
step during which the workload stood does not count. Nor do the first ones behind a stop: while it stands, nobody waits
in it, so what its data loader's workers wait for (a disk, a timer) is there when it goes on, one item for each worker,
and the first batches come early.

The block's time is its mean, not the median of its steps: workers that have started together deliver together, and of
every four batches of four workers three are there at once. The median would say that nobody waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.runs.tune.step_stream import EndedStep
from frx_graph.trials.configuration_trial import StepBlock
from frx_graph.trials.schedule import Arm

FEWEST_SETTLING = 2
"""Steps behind a stop that do not count, also where there are no workers: caches are cold."""


@dataclass(frozen=True, slots=True)
class BlockLength:
    """In steps."""

    settle: int
    """Not counted, behind a stop."""
    count: int

    @property
    def ends(self) -> int:
        """Ends of steps to be seen: the first begins the first whole step."""
        return 1 + self.settle + self.count


def block_length(steps: int, workers: int | None) -> BlockLength:
    """Return at least `steps`, in whole rounds of `workers`, so that a block has as many early batches as late ones;
    two rounds settle."""
    round_of = max(1, workers or 1)
    return BlockLength(settle=max(FEWEST_SETTLING, 2 * round_of), count=-(-steps // round_of) * round_of)


def step_block(
    arm: Arm,
    steps: Sequence[EndedStep],
    running: tuple[int, int],
    length: BlockLength,
) -> StepBlock | None:
    """Return the block of `steps` that ended between the two moments of `running`, from when the workload continued
    until it was stopped, in nanoseconds; None if there are too few."""
    begin, end = running
    inside = [step for step in steps if begin <= step.end_ns <= end]
    if len(inside) < length.ends:
        return None
    counted = inside[length.settle : length.ends]
    samples = [step.samples for step in counted[1:]]
    return StepBlock(
        arm,
        # A clock that is set back, or two events of one moment, must not make a time of nothing.
        tuple(max(after.end_ns - before.end_ns, 1) / 1e9 for before, after in itertools.pairwise(counted)),
        sum(told) if len(told := [count for count in samples if count]) == len(samples) else None,
    )
