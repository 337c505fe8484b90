"""Compare the step times of two runs, by the ratio of their medians and its interval.

Steps that follow each other resemble each other, so blocks of them are drawn (a moving block bootstrap, Künsch 1989).
The interval covers the steps of these two processes. Other processes of the same programs may differ by
`PROCESS_SPREAD`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PROCESS_SPREAD = 0.04
"""Two processes that run the same program differ by so much in step time, measured under Inductor on CPUs. A smaller
change may come from the process."""
_FEWEST = 8
"""Steps below which no interval is computed."""
_DRAWS = 2000
_COVERED = 0.95


class StepVerdict(enum.StrEnum):
    """Answers of the step times about the second run. UNKNOWN: the interval allows more than one answer."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StepChange:
    """Median step times, and how much longer the second run's are, as a share: -0.1 is 10 % shorter. `low` and `high`
    cover 95 %; both are None if there are too few steps. The means, which set the throughput, also count the few steps
    that take far longer."""

    before_ms: float
    after_ms: float
    before_mean_ms: float
    after_mean_ms: float
    before_steps: int
    after_steps: int
    low: float | None
    high: float | None

    @property
    def change(self) -> float:
        """Return the change of the medians."""
        return self.after_ms / self.before_ms - 1.0

    @property
    def mean_change(self) -> float:
        """Return the change of the means."""
        return self.after_mean_ms / self.before_mean_ms - 1.0

    @property
    def verdict(self) -> StepVerdict:
        """Return what holds for the whole interval, beyond what two processes differ by."""
        if self.low is None or self.high is None:
            return StepVerdict.UNKNOWN
        if self.high < -PROCESS_SPREAD:
            return StepVerdict.FASTER
        if self.low > PROCESS_SPREAD:
            return StepVerdict.SLOWER
        within = self.low > -PROCESS_SPREAD and self.high < PROCESS_SPREAD
        return StepVerdict.SAME if within else StepVerdict.UNKNOWN


def compare_step_times(before: Sequence[float], after: Sequence[float]) -> StepChange | None:
    """Compare steps in milliseconds, in order; None if a side has none, or one that takes no time."""
    first, second = np.asarray(before, float), np.asarray(after, float)
    if not first.size or not second.size or not np.median(first) > 0:
        return None
    low = high = None
    if min(first.size, second.size) >= _FEWEST:
        random = np.random.default_rng(0)
        new, old = _draw_medians(second, random), _draw_medians(first, random)
        if old.min() > 0:
            tail = 100 * (1 - _COVERED) / 2
            low, high = (float(one) - 1.0 for one in np.percentile(new / old, [tail, 100 - tail]))
    return StepChange(
        before_ms=float(np.median(first)),
        after_ms=float(np.median(second)),
        before_mean_ms=float(first.mean()),
        after_mean_ms=float(second.mean()),
        before_steps=first.size,
        after_steps=second.size,
        low=low,
        high=high,
    )


def _draw_medians(steps: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    length = math.isqrt(steps.size)
    blocks = -(-steps.size // length)
    starts = random.integers(0, steps.size - length + 1, (_DRAWS, blocks, 1))
    drawn = steps[starts + np.arange(length)].reshape(_DRAWS, -1)[:, : steps.size]
    return np.asarray(np.median(drawn, axis=1))
