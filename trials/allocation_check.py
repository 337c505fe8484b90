"""Check whether a gain that was measured under one allocation of host memory shows under another.

With glibc's default, a step faults in what the step before gave back, and the cost differs from process to process. So
trials measure with pooled memory, in which the times of small programs differ by a sixth as much (docs/trials.md). The
user's own processes may give memory back: a short check in such processes tells whether the gain shows there, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from frx_graph.support.allocator import Allocation
from frx_graph.trials.protocol import Protocol
from frx_graph.trials.samples import OF_OTHERS, MeasuredQuad, count_disturbed
from frx_graph.trials.statistics import compute_pairs_bound
from frx_graph.trials.verdict import Outcome, TrialStatistics, Verdict, format_gain, format_percent, group_log_ratios

_SHORT_PAIRS = 2
"""Process pairs that look for a gain that pooled memory does not show."""
_FIRST_PAIRS, _MOST_PAIRS = 3, 6
"""Process pairs that check a gain: the first, and all if those prove neither that it shows nor that it does not."""
_QUADS_PER_PAIR = 3
_CHECK_ALPHA = 0.01
"""Probability that the process pairs of a check wrongly prove a gain, or none, in one look. With the default allocator
pairs differ by up to 40 %, and the median of two shows 1.5 % by chance in nearly half of all checks."""
NAMES = {
    Allocation.DEFAULT: "the default allocator",
    Allocation.POOLED: "pooled memory",
    Allocation.CHOSEN: "the environment's allocator",
    Allocation.UNKNOWN: "the system's allocator",
}
DESCRIPTIONS = {
    Allocation.DEFAULT: "the default allocator: large freed blocks go back to the system",
    Allocation.POOLED: "pooled memory: a process keeps the memory that it frees",
    Allocation.CHOSEN: "the environment's allocator: a preloaded library or MALLOC variables",
    Allocation.UNKNOWN: "the system's allocator",
}
"""The same, explained."""


@dataclass(frozen=True, slots=True)
class AllocationCheck:
    """The result of a trial for another allocation than the one it was measured under. `shows`: the gain shows there,
    too; None: unknown. `failure` is why the candidate failed there, and `verdict` that of a whole trial there, or what
    follows for this allocation once the trial has ended."""

    allocation: Allocation
    shows: bool | None = None
    ratio_median: float | None = None
    """Median of the pairs' medians, baseline over candidate; None without an undisturbed quad."""
    pair_medians: tuple[float, ...] = ()
    quads: tuple[MeasuredQuad, ...] = ()
    failure: str = ""
    verdict: Verdict | None = None

    def derive_verdict(self, measured: Verdict) -> Verdict:
        """Return the verdict for this allocation after that of the other, `measured`, with a reason and figures that
        are about this allocation."""
        if self.verdict is not None:
            return self.verdict
        promoted = measured.outcome is Outcome.PROMOTE
        unknown = self.shows is None and (promoted or self.quads)
        refused = self.shows is False and promoted
        failed = refused or bool(self.failure)
        outcome = Outcome.REJECT if failed else Outcome.INCONCLUSIVE if unknown else measured.outcome
        if outcome is Outcome.REJECT and not (promoted or self.failure) and (self.ratio_median or 0.0) > 1:
            # One pair or two that have gained here do not prove a loss.
            outcome = Outcome.INCONCLUSIVE
        return Verdict(outcome, f"{self._explain_outcome(measured)}{self._mark_loaded()}", None, measured.early)

    def _mark_loaded(self) -> str:
        loaded = count_disturbed(self.quads, *OF_OTHERS, void=False)
        return f"; {loaded} of {len(self.quads)} rounds were disturbed, and count" if loaded else ""

    def proves_loss(self, protocol: Protocol) -> bool:
        """Return True if the process pairs prove that the candidate is slower by the minimum."""
        slower = [-math.log(ratio) for ratio in self.pair_medians]
        return bool(slower) and compute_pairs_bound(slower, protocol.process_bias, _CHECK_ALPHA) > protocol.minimum

    def _explain_outcome(self, measured: Verdict) -> str:
        promoted = measured.outcome is Outcome.PROMOTE
        if self.failure:
            return f"it fails: {self.failure}"
        if self.ratio_median is None:
            return "not measured" if promoted else f"not measured; with pooled memory: {measured.reason}"
        pairs = ", ".join(map(format_percent, self.pair_medians))
        seen = f"{format_gain(self.ratio_median)} (process pairs {pairs} %)"
        if self.shows:
            return seen
        if self.shows is None:
            return f"{seen}, which is not proved"
        if promoted:
            return f"{seen}: the gain does not show"
        if self.ratio_median <= 1:
            return seen
        return f"{seen}, but not in every process pair" if min(self.pair_medians) < 1 else f"{seen}: too little"


def choose_allocations(own: Allocation, *, in_process: bool, pools: bool) -> tuple[Allocation, ...]:
    """Return the allocation to measure under, and the one to check, if any. `own` is the user's. A candidate that
    itself `pools` memory is compared with the default."""
    if own is not Allocation.DEFAULT or in_process or pools:
        return (own,)
    return (Allocation.POOLED, own)


def shorten_protocol(protocol: Protocol, *, promoted: bool) -> Protocol:
    """Return the protocol of a check after a trial under `protocol`, which has `promoted` the candidate or not."""
    pairs = _MOST_PAIRS if promoted else _SHORT_PAIRS
    return replace(protocol, process_pairs=pairs, quads_per_pair=_QUADS_PER_PAIR, seed=protocol.seed + 1)


def summarize_check(allocation: Allocation, quads: Sequence[MeasuredQuad], protocol: Protocol) -> AllocationCheck:
    """Return what the quads of a check show under the shortened `protocol`: after a promotion, whether the pairs prove
    a gain, or that it is too small. A check of two pairs looks for a gain that pooled memory does not show: it takes
    both, since a promotion takes every pair."""
    pairs = [ratios for ratios in group_log_ratios(quads) if len(ratios) >= protocol.quads_per_pair]
    medians = [statistics.median(ratios) for ratios in pairs]
    found = AllocationCheck(allocation, quads=tuple(quads))
    if not medians:
        return found
    median = statistics.median(medians)
    seen = replace(found, ratio_median=math.exp(median), pair_medians=tuple(map(math.exp, medians)))
    if protocol.process_pairs == _SHORT_PAIRS:
        if not _shows(median, protocol):
            return replace(seen, shows=False)
        whole = len(medians) == _SHORT_PAIRS and all(_shows(one, protocol) for one in medians)
        return replace(seen, shows=True) if whole else seen
    if len(medians) < _FIRST_PAIRS:
        return seen
    low = compute_pairs_bound(medians, protocol.process_bias, _CHECK_ALPHA)
    high = -compute_pairs_bound([-one for one in medians], protocol.process_bias, _CHECK_ALPHA)
    if low > 0 and _shows(median, protocol):
        return replace(seen, shows=True)
    return replace(seen, shows=False) if high < max(protocol.agreement, 0.0) else seen


def summarize_whole(
    allocation: Allocation, measured: TrialStatistics, quads: Sequence[MeasuredQuad]
) -> AllocationCheck:
    """Return what the quads of a whole trial with `allocation` have `measured`."""
    return AllocationCheck(allocation, None, measured.ratio_median, measured.pair_medians, tuple(quads))


def _shows(log_ratio: float, protocol: Protocol) -> bool:
    return log_ratio > 0 and log_ratio >= protocol.agreement
