"""Derive the rules of one trial from the policy and from the way it is run.

Speed-ups are compared as logarithms of ratios of times, `log(1 + speed-up)`: a gain and the loss that undoes it differ
by their sign alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from frx_graph.trials.policy import TrialPolicy

BLOCKS_PER_QUAD = 4


@dataclass(frozen=True, slots=True)
class Protocol:
    """Counts, and thresholds as logarithms of ratios. `protocol` builds it."""

    process_pairs: int
    quads_per_pair: int
    steps_per_block: int
    void_quads_allowed: int
    seed: int
    minimum: float
    """Log ratio that the median of all quads must reach."""
    agreement: float
    """Log ratio that the median of every process pair must reach; it must also be above 0."""
    alpha: float
    """One-sided error probability of this candidate, for all tests of quads."""
    pairs_alpha: float
    """The same for the test of process pairs. It is not divided by the number of candidates, since so few pairs would
    then prove hardly anything. All pairs must also agree, which is rarer by chance."""
    process_bias: float
    """Standard deviation of a process pair's log ratio beside the quads' own noise."""
    extra_pairs: int = 0
    """Process pairs that are added if all others leave the verdict open."""
    added_pairs: int = 0
    """Those of `process_pairs` that were added."""

    @property
    def quads(self) -> int:
        """Undisturbed quads that a whole trial has."""
        return self.process_pairs * self.quads_per_pair

    @property
    def steps(self) -> int:
        """Steps of both arms together in a whole trial, without those that are run again."""
        return self.quads * BLOCKS_PER_QUAD * self.steps_per_block

    def extend(self) -> Protocol | None:
        """Return the protocol with the extra pairs added, for a second look at all quads; None if it has none. The
        second look has half the error probabilities."""
        if not self.extra_pairs:
            return None
        return replace(
            self,
            process_pairs=self.process_pairs + self.extra_pairs,
            alpha=self.alpha / 2,
            pairs_alpha=self.pairs_alpha / 2,
            extra_pairs=0,
            added_pairs=self.extra_pairs,
        )


def make_protocol(policy: TrialPolicy, candidates: int = 1, *, in_process: bool = False) -> Protocol:
    """Return the protocol of one of `candidates` trials, whose best will be used. With `in_process`, one process runs
    as many quads as all pairs would. Its peculiarities (memory addresses, allocator state) may favour one arm in every
    quad, and no number of quads shows it, so the threshold is raised by `in_process_extra`. Raises `ValueError` for
    less than one candidate."""
    if candidates < 1:
        raise ValueError(f"{candidates} candidates")
    extra = policy.in_process_extra if in_process else 0.0
    minimum = math.log1p(policy.minimum_speedup + extra)
    return Protocol(
        process_pairs=1 if in_process else policy.process_pairs,
        quads_per_pair=policy.quads_per_pair * (policy.process_pairs if in_process else 1),
        steps_per_block=policy.steps_per_block,
        void_quads_allowed=policy.void_quads_allowed,
        seed=policy.seed,
        minimum=minimum,
        agreement={"minimum": 1.0, "half": 0.5, "direction": 0.0}[policy.pair_agreement] * minimum,
        alpha=policy.alpha / candidates,
        pairs_alpha=policy.alpha,
        process_bias=0.0 if in_process else policy.process_bias,
        extra_pairs=0 if in_process else policy.extra_process_pairs,
    )
