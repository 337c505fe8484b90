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
from frx_graph.trials.samples import MeasuredQuad
from frx_graph.trials.verdict import Outcome, TrialStatistics, Verdict, format_gain, format_percent, group_log_ratios

_FIRST_PAIRS = 2
_MOST_PAIRS = 4
"""Process pairs of a check whose first pairs disagree."""
_QUADS_PER_PAIR = 3
NAMES = {
    Allocation.DEFAULT: "the default allocator",
    Allocation.POOLED: "pooled memory",
    Allocation.CHOSEN: "the environment's allocator",
    Allocation.UNKNOWN: "the system's allocator",
}


@dataclass(frozen=True, slots=True)
class AllocationCheck:
    """The result of a trial for another allocation than the one it was measured under. `shows`: the gain shows there,
    too; None: unknown. `failure` is why the candidate failed there, and `verdict` that of a whole trial there."""

    allocation: Allocation
    shows: bool | None = None
    ratio_median: float | None = None
    """Median of the pairs' medians, baseline over candidate; None without an undisturbed quad."""
    pair_medians: tuple[float, ...] = ()
    quads: tuple[MeasuredQuad, ...] = ()
    failure: str = ""
    verdict: Verdict | None = None

    def describe(self) -> str:
        """Return the result in a few words."""
        if self.failure:
            return f"with {NAMES[self.allocation]} it fails: {self.failure}"
        if self.ratio_median is None:
            return f"not measured with {NAMES[self.allocation]}"
        pairs = ", ".join(map(format_percent, self.pair_medians))
        return f"with {NAMES[self.allocation]} {format_gain(self.ratio_median)} (pairs {pairs} %)"

    def derive_verdict(self, measured: Verdict) -> Verdict:
        """Return the verdict for this allocation after that of the other, `measured`."""
        if self.verdict is not None:
            return self.verdict
        unknown = self.shows is None and self.quads
        if self.shows or (measured.outcome is not Outcome.PROMOTE and not unknown):
            return measured
        if self.shows is None:
            return replace(measured, outcome=Outcome.INCONCLUSIVE, reason=f"{self.describe()}: unknown there")
        end = "" if self.failure else ": the gain does not show there"
        return replace(measured, outcome=Outcome.REJECT, reason=f"{self.describe()}{end}")


def choose_allocations(own: Allocation, *, in_process: bool, pools: bool) -> tuple[Allocation, ...]:
    """Return the allocation to measure under, and the one to check, if any. `own` is the user's. A candidate that
    itself `pools` memory is compared with the default."""
    if own is not Allocation.DEFAULT or in_process or pools:
        return (own,)
    return (Allocation.POOLED, own)


def shorten_protocol(protocol: Protocol, *, promoted: bool) -> Protocol:
    """Return the protocol of a check after a trial under `protocol`, which has `promoted` the candidate or not."""
    pairs = _MOST_PAIRS if promoted else _FIRST_PAIRS
    return replace(protocol, process_pairs=pairs, quads_per_pair=_QUADS_PER_PAIR, seed=protocol.seed + 1)


def summarize_check(allocation: Allocation, quads: Sequence[MeasuredQuad], protocol: Protocol) -> AllocationCheck:
    """Return what the quads of a check show under the shortened `protocol`. The first two pairs decide if they agree,
    else the median of all four. A check of two pairs looks for a gain that pooled memory does not show: it takes both,
    since a promotion takes every pair."""
    pairs = [ratios for ratios in group_log_ratios(quads) if len(ratios) >= protocol.quads_per_pair]
    medians = [statistics.median(ratios) for ratios in pairs]
    found = AllocationCheck(allocation, quads=tuple(quads))
    if not medians:
        return found
    median = statistics.median(medians)
    seen = replace(found, ratio_median=math.exp(median), pair_medians=tuple(map(math.exp, medians)))
    shown = [_shows(one, protocol) for one in medians]
    if protocol.process_pairs == _FIRST_PAIRS and not all(shown):
        return replace(seen, shows=False)
    if len(medians) == _FIRST_PAIRS and len(set(shown)) == 1:
        return replace(seen, shows=shown[0])
    return replace(seen, shows=_shows(median, protocol)) if len(medians) >= protocol.process_pairs else seen


def summarize_whole(
    allocation: Allocation, measured: TrialStatistics, quads: Sequence[MeasuredQuad]
) -> AllocationCheck:
    """Return what the quads of a whole trial with `allocation` have `measured`."""
    return AllocationCheck(allocation, None, measured.ratio_median, measured.pair_medians, tuple(quads))


def _shows(log_ratio: float, protocol: Protocol) -> bool:
    return log_ratio > 0 and log_ratio >= protocol.agreement
