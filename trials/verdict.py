"""Decide from the quads of a trial: promote, reject, equivalent, or inconclusive.

At the end of a trial, with all its quads measured, the log ratios of times (baseline over candidate) decide:

- **promote**: the lower bounds of the trimmed t-test and of the process pairs are above 0. The median of all quads
  reaches the minimum. The median of every process pair reaches half of it (or all of it, or is above 0, as the policy
  says).
- **equivalent**: with 95 % confidence each, the mean is above minus the minimum and below the minimum, so no difference
  matters (two one-sided tests, Schuirmann 1987).
- **reject**: otherwise, if it is below the minimum with 95 % confidence: slower, or not as fast as was asked for.
  Nothing is used after a rejection, so it needs less proof than a promotion.
- **inconclusive**: all other cases, also if too many quads were void. It is not a milder promotion: nothing is used.

An inconclusive trial with all quads gets more process pairs once, for a second look. The median of every pair then need
not reach half the minimum, but the mean of the pairs must exceed it with 99.75 % confidence. To be below the minimum,
the mean of the quads then only has to be there: a gain that twelve pairs do not show is not worth another trial.

A trial ends earlier when the safe t-test has seen enough. It ends without promotion when the mean is below the minimum,
in at least two pairs of processes; "equivalent" then takes 95 % confidence, as at the end. It promotes when the mean
exceeds the minimum, and only from the fourth pair on (or in the last), because no number of quads shows a process's
effect on all its quads. Some programs have slow and fast processes, 30 % apart (docs/trials.md). Of two pairs of such a
program, both favour one arm once in eight trials, and of four all do once in 128. So the spread of the first pairs
decides how many there are.
"""

from __future__ import annotations

import enum
import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.trials.protocol import Protocol
from frx_graph.trials.samples import Cause, MeasuredQuad
from frx_graph.trials.schedule import Arm
from frx_graph.trials.statistics import (
    compute_pairs_bound,
    compute_safe_interval,
    compute_safe_t,
    compute_trimmed_interval,
    convert_to_ratio,
)

_DISTURBERS = {
    Cause.LOADED: "other programs",
    Cause.THROTTLED: "slowed-down hardware",
    Cause.RECOMPILED: "a compilation",
    Cause.MOVED: "processors that share no cache",
}
FEWEST_PAIRS = 2
"""Pairs that an early rejection needs: one pair cannot disagree with itself."""
PROVING_PAIRS = 4
"""Pairs that a promotion before the last pair needs, each of which must reach the minimum."""
REJECTION_ALPHA = 0.05
"""Probability that a candidate just at the minimum is rejected by the last quad. A false rejection costs a gain. A
false promotion slows the program down, so its probability is the policy's far smaller alpha."""
LAST_LOOK_ALPHA = 0.5
"""The same after a second look, that of the more likely side: no pairs are left that could tell. The median, which is
printed, has to be on that side, too."""
SECOND_LOOK_ALPHA = 0.0025
"""Probability that the process pairs of a second look wrongly prove what every pair of the first has to show. All of
twelve pairs would show it in a quarter of the trials of a gain of 4 %, if processes differ by 2 %."""

CHANGED_SPEED = 1.15
"""How many times as long both arms take in one process pair as in another, from where on the machine's speed counts as
changed. On an idle virtual EPYC, medians of pairs mostly differed by less than 6 %, or by more than 20 %."""


class Outcome(enum.StrEnum):
    """The outcome of a candidate; only the first is ever used."""

    PROMOTE = "promote"
    REJECT = "reject"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class TrialStatistics:
    """Ratios are times of the baseline over times of the candidate: 1.1 is 10 % faster."""

    ratio_median: float
    ci_low: float
    """Lower bound of the ratio, which is wrong with at most the probability alpha over candidates."""
    ci_high: float
    """Upper bound of the ratio; infinity before there are enough quads."""
    quads: int
    processes: int
    """Pairs of processes in which they were measured."""
    pair_medians: tuple[float, ...]
    """Median ratio of each pair of processes, in the order they ran."""
    void: int
    """Quads that were disturbed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict and its reason, in a line for people."""

    outcome: Outcome
    reason: str
    statistics: TrialStatistics | None
    """None if no quad was undisturbed."""
    early: bool
    """True if it ended before all quads had been measured."""


def decide_early(quads: Sequence[MeasuredQuad], protocol: Protocol) -> Verdict | None:
    """Return the verdict that the quads so far settle, after any quad but the last, which `decide_finally` judges; None
    if the trial has to go on."""
    pairs = group_log_ratios(quads)
    every = [ratio for pair in pairs for ratio in pair]
    if len(pairs) < min(FEWEST_PAIRS, protocol.process_pairs) or len(every) >= protocol.quads:
        return None
    enough = -math.log(protocol.alpha)
    if (
        _may_promote_now(pairs, protocol)
        and _check_pairs_prove(pairs, protocol)
        and compute_safe_t(every, protocol.minimum) >= enough
    ):
        outcome = Outcome.PROMOTE
    elif compute_safe_t([-ratio for ratio in every], -protocol.minimum) >= enough:
        outcome = Outcome.EQUIVALENT if _is_likely_above_loss(every, protocol) else Outcome.REJECT
    else:
        return None
    stats = _compute_statistics(quads, pairs, compute_safe_interval(every, protocol.alpha))
    return Verdict(outcome, _explain_outcome(outcome, stats, protocol), stats, early=True)


def _may_promote_now(pairs: Sequence[Sequence[float]], protocol: Protocol) -> bool:
    """Return True in the last pair, and before it if each of enough pairs reaches the minimum."""
    if len(pairs) == protocol.process_pairs:
        return True
    return len(pairs) >= PROVING_PAIRS and min(_compute_medians(pairs)) >= protocol.minimum


def decide_finally(quads: Sequence[MeasuredQuad], protocol: Protocol) -> Verdict:
    """Return the verdict of all quads. A trial that could not measure all it should have is inconclusive."""
    pairs = group_log_ratios(quads)
    every = [ratio for pair in pairs for ratio in pair]
    if len(every) < protocol.quads:
        reason = f"only {len(every)} of {protocol.quads} rounds were measured{_describe_void(quads)}"
        interval = compute_trimmed_interval(every, protocol.alpha) if len(every) > 1 else (-math.inf, math.inf)
        seen_so_far = _compute_statistics(quads, pairs, interval) if every else None
        return Verdict(Outcome.INCONCLUSIVE, reason, seen_so_far, early=False)
    low, high = compute_trimmed_interval(every, protocol.alpha)
    rejection_alpha = LAST_LOOK_ALPHA if protocol.added_pairs else REJECTION_ALPHA
    _, likely_high = compute_trimmed_interval(every, max(protocol.alpha, rejection_alpha))
    if low > 0 and statistics.median(every) >= protocol.minimum and _check_pairs_prove(pairs, protocol):
        outcome = Outcome.PROMOTE
    elif likely_high < protocol.minimum and statistics.median(every) < protocol.minimum:
        outcome = Outcome.EQUIVALENT if _is_likely_above_loss(every, protocol) else Outcome.REJECT
    else:
        outcome = Outcome.INCONCLUSIVE
    stats = _compute_statistics(quads, pairs, (low, high))
    reason = _explain_outcome(outcome, stats, protocol)
    if outcome is Outcome.INCONCLUSIVE:
        reason += _describe_changed_speed(quads)
    return Verdict(outcome, reason, stats, early=False)


def _is_likely_above_loss(log_ratios: Sequence[float], protocol: Protocol) -> bool:
    """Return True if the candidate is, with 95 % confidence, not slower by the minimum."""
    low, _ = compute_trimmed_interval(log_ratios, max(protocol.alpha, REJECTION_ALPHA))
    return low > -protocol.minimum


def summarize_reason(verdict: Verdict) -> str:
    """Return the beginning of the reason: what was found, or how many rounds were measured."""
    return re.split("[,:;]", verdict.reason, maxsplit=1)[0]


def _describe_void(quads: Sequence[MeasuredQuad]) -> str:
    """Return how many quads were disturbed, and by what; a quad counts for its first disturbance."""
    first = (next((block.disturbance for block in quad.blocks if block.disturbance), None) for quad in quads)
    causes = Counter(found.cause for found in first if found is not None)
    seen = ", ".join(f"{count} by {_DISTURBERS[cause]}" for cause, count in causes.most_common())
    verb = "was" if causes and causes.most_common(1)[0][1] == 1 else "were"
    return f", {seen.replace(' by', f' {verb} disturbed by', 1)}" if seen else ""


def _describe_changed_speed(quads: Sequence[MeasuredQuad]) -> str:
    """Return that the machine's speed changed between process pairs, if it did: both arms of a pair run in turn, so
    what slows both is neither of them."""
    seconds: dict[int, dict[Arm, list[float]]] = {}
    for measured in quads:
        if not measured.void:
            arms = seconds.setdefault(measured.quad.pair, {arm: [] for arm in Arm})
            for block in measured.blocks:
                arms[block.arm] += block.seconds
    medians = [{arm: statistics.median(of_arm) for arm, of_arm in arms.items()} for arms in seconds.values()]
    slow, fast = (select(medians, key=lambda arms: sum(arms.values())) for select in (max, min))
    times = min(slow[arm] / fast[arm] for arm in Arm)
    if times < CHANGED_SPEED:
        return ""
    return f"; the machine's speed changed: both programs took up to {times:.2g} times as long as in its fastest pair"


def group_log_ratios(quads: Sequence[MeasuredQuad]) -> list[list[float]]:
    """Return the log ratios of undisturbed quads, a list for each pair of processes that has any."""
    pairs: dict[int, list[float]] = {}
    for measured in quads:
        if not measured.void:
            pairs.setdefault(measured.quad.pair, []).append(measured.log_ratio)
    return [pairs[pair] for pair in sorted(pairs)]


def _compute_medians(pairs: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(pair) for pair in pairs]


def find_dissent(quads: Sequence[MeasuredQuad], protocol: Protocol) -> bool:
    """Return True if a process pair shows too little for a promotion; a pair with quads left does not count."""
    whole = [pair for pair in group_log_ratios(quads) if len(pair) >= protocol.quads_per_pair]
    return not _check_pairs_agree(_compute_medians(whole), protocol)


def _check_pairs_agree(medians: Sequence[float], protocol: Protocol) -> bool:
    return all(median > 0 and median >= protocol.agreement for median in medians)


def _check_pairs_prove(pairs: Sequence[Sequence[float]], protocol: Protocol) -> bool:
    medians = _compute_medians(pairs)
    bound = compute_pairs_bound(medians, protocol.process_bias, protocol.pairs_alpha)
    if bound <= 0 or not protocol.added_pairs:
        return bound > 0 and _check_pairs_agree(medians, protocol)
    return compute_pairs_bound(medians, protocol.process_bias, SECOND_LOOK_ALPHA) >= protocol.agreement


def _compute_statistics(
    quads: Sequence[MeasuredQuad], pairs: Sequence[Sequence[float]], interval: tuple[float, float]
) -> TrialStatistics:
    every = [ratio for pair in pairs for ratio in pair]
    return TrialStatistics(
        ratio_median=math.exp(statistics.median(every)),
        ci_low=math.exp(interval[0]),
        ci_high=convert_to_ratio(interval[1]),
        quads=len(every),
        processes=len(pairs),
        pair_medians=tuple(map(math.exp, _compute_medians(pairs))),
        void=sum(measured.void for measured in quads),
    )


def _explain_outcome(outcome: Outcome, stats: TrialStatistics, protocol: Protocol) -> str:
    """Return one line with the gain, its interval, and the deciding reason."""
    minimum = f"{100 * math.expm1(protocol.minimum):.3g} %"
    between = format_range(stats.ci_low, stats.ci_high)
    if outcome is Outcome.PROMOTE:
        bounds = f"{format_percent(stats.ci_low)} to {format_percent(stats.ci_high)} %"
        seen = f"{format_gain(stats.ratio_median)} ({bounds})"
        count = "both" if stats.processes == FEWEST_PAIRS else f"all {stats.processes}"
        pairs = "in one process" if protocol.process_pairs == 1 else f"and {count} process pairs agree"
        if protocol.added_pairs:
            pairs = f"and {stats.processes} process pairs prove half of it"
        return f"{seen}: the {minimum} asked for is reached, {pairs}"
    excluded = math.log(stats.ci_high) < protocol.minimum and (
        outcome is Outcome.REJECT or math.log(stats.ci_low) > -protocol.minimum
    )
    likely = "" if excluded else "probably " if protocol.added_pairs else "most likely "
    seen = f"{format_gain(stats.ratio_median)} ({between})"
    if outcome is Outcome.EQUIVALENT:
        return f"{likely}no difference of {minimum} or more: {seen}"
    if outcome is Outcome.REJECT:
        return seen if stats.ci_high < 1 else f"{likely}not faster by the {minimum} asked for: {seen}"
    if stats.ci_low <= 1:
        return f"perhaps no faster at all: {between}"
    if math.log(stats.ratio_median) < protocol.minimum:
        return f"perhaps not faster by the {minimum} asked for: {between}"
    medians = ", ".join(format_percent(ratio) for ratio in stats.pair_medians)
    if protocol.added_pairs or _check_pairs_agree([math.log(ratio) for ratio in stats.pair_medians], protocol):
        return f"{between}, but the process pairs ({medians} %) are too few, or differ too much, to prove it"
    return f"{between}, but the process pairs disagree ({medians} %)"


def format_range(low: float, high: float) -> str:
    """Return an interval of ratios of times in words: `between 7.7 % slower and 3.2 % faster`."""
    ends = (_format_end(low), _format_end(high))
    if low >= 1:
        return f"between {ends[0]} and {ends[1]} faster"
    if high <= 1:
        return f"between {ends[1]} and {ends[0]} slower"
    return f"between {ends[0]} slower and {ends[1]} faster"


def _format_end(ratio: float) -> str:
    return f"{100 * abs(ratio - 1):.1f} %"


def format_gain(ratio: float) -> str:
    """Return a ratio of times in words: `4.0 % faster`."""
    return f"{100 * (ratio - 1):.1f} % faster" if ratio >= 1 else f"{100 * (1 - ratio):.1f} % slower"


def format_percent(ratio: float) -> str:
    """Return a ratio of times as a signed percentage: `+4.0`."""
    return f"{100 * (ratio - 1):+.1f}"
