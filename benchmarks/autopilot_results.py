"""What the autopilot tried, predicted and promoted, whether that holds, and the figures of all of it. Unknown is None.

A saving is in seconds of a step of one graph: the baseline's time minus the candidate's. Where it was measured, it is
the median over the undisturbed quads of a trial.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scipy import stats
from versus_results import NOISE, Verdict

from frx_graph.reports.trials.trial_document import QuadPart, TrialDocument
from frx_graph.trials.verdict import Outcome

REPLICATION_BOUND = 0.95
FEWEST_RANKED = 3
"""Two pairs have a rank correlation of 1 or -1, whatever they are."""


@dataclass(frozen=True)
class Measured:
    """What a trial measured. `ratio` is the baseline's time over the candidate's, from `low` to `high` (None: no bound
    yet); None of all figures where no quad was undisturbed. `complete` is False where the trial was cut short before it
    had enough to decide by."""

    outcome: Outcome
    reason: str
    complete: bool
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    saved_seconds: float | None = None
    baseline_seconds: float | None = None
    quads: int = 0

    @property
    def failed(self) -> bool:
        """A gate before the throughput was not passed."""
        return self.outcome is Outcome.REJECT and self.ratio is None

    @property
    def known_ratio(self) -> float | None:
        """None where too little was measured for one."""
        return self.ratio if self.complete else None


@dataclass(frozen=True)
class Tried:
    """One trial of the autopilot's. `names` are the portions that its candidates belong to, one for a single candidate;
    `unpriced` are the rewrites that nothing was predicted for. `again` is the same trial, in fresh processes."""

    plan: str
    names: tuple[str, ...]
    predicted_seconds: float | None
    unpriced: tuple[str, ...]
    trial: Measured
    again: Measured | None = None

    @property
    def promoted(self) -> bool:
        return self.trial.outcome is Outcome.PROMOTE

    @property
    def single(self) -> bool:
        return len(self.names) == 1

    def replicated(self, minimum_speedup: float) -> bool | None:
        """Whether it is again as much faster as was asked for; None where it was not promoted, or not measured."""
        if not self.promoted or self.again is None:
            return None
        if self.again.failed:
            return False
        return None if self.again.known_ratio is None else self.again.known_ratio >= 1 + minimum_speedup


@dataclass(frozen=True)
class GraphResult:
    """One graph. `final` is the plan that the autopilot applies, None for the baseline; `duel` is the best single
    candidate against it, as the candidate of a trial; `problem` is why nothing was tried."""

    signature: str
    tried: tuple[Tried, ...] = ()
    final: str | None = None
    duel: Measured | None = None
    problem: str | None = None

    @property
    def best_single(self) -> Tried | None:
        """The fastest of those tried alone, promoted or not; None where none was measured."""
        singles = [one for one in self.tried if one.single and one.trial.known_ratio is not None]
        return max(singles, key=lambda one: one.trial.known_ratio or 0.0, default=None)

    @property
    def final_tried(self) -> Tried | None:
        """The trial of what is applied."""
        return next((one for one in self.tried if one.plan == self.final), None)

    @property
    def needs_duel(self) -> bool:
        """Whether what is applied has to be timed against the best single candidate to know which is faster. Not where
        it is that, nor where nothing is applied and that one's own trial found it no faster than noise."""
        best = self.best_single
        if best is None or best.plan == self.final:
            return False
        return self.final is not None or 1 / (best.trial.ratio or 1.0) < NOISE

    @property
    def over_best(self) -> float | None:
        """The speed of what is applied over the best single candidate's; None where that is not known."""
        best = self.best_single
        if best is None:
            return None
        if best.plan == self.final:
            return 1.0
        if self.needs_duel:
            found = None if self.duel is None else self.duel.known_ratio
            return None if found is None else 1 / found
        return 1 / (best.trial.ratio or 1.0)

    @property
    def holds(self) -> bool | None:
        """Whether what is applied is at least as fast as the best single candidate, but for noise. None where that is
        not known, also where it seems slower and the duel's interval does not rule out that it is not."""
        over = self.over_best
        if over is None or over >= NOISE:
            return None if over is None else True
        sure = self.duel is not None and self.duel.low is not None and 1 / self.duel.low < NOISE
        return False if sure else None


@dataclass(frozen=True)
class CaseResult:
    """One network. `problems` are what went wrong in its process, and what it warned of."""

    title: str
    graphs: tuple[GraphResult, ...]
    seconds: float
    problems: tuple[str, ...] = ()
    failed: bool = False

    @property
    def tried(self) -> Iterator[Tried]:
        return (one for graph in self.graphs for one in graph.tried)


@dataclass(frozen=True)
class Summary:
    """The figures of all trials. Errors are predicted minus measured savings: `error` the mean of their sizes, `bias`
    their mean; of seconds, and of percent of a step's time. `fewest_replicated` is the lower end of the interval that
    holds the true rate with 95 % confidence (Clopper and Pearson)."""

    trials: int
    incomplete: int
    failed: int
    unpriced: dict[str, int]
    compared: int
    rho_seconds: float | None
    rho_percent: float | None
    error_seconds: float | None
    bias_seconds: float | None
    error_percent: float | None
    bias_percent: float | None
    promoted: int
    replicated: int
    not_replicated: int
    fewest_replicated: float | None

    @property
    def replication(self) -> float | None:
        """Of the promotions that were measured again."""
        again = self.replicated + self.not_replicated
        return self.replicated / again if again else None


def measured(document: TrialDocument) -> Measured:
    """What a trial's document says."""
    outcome = Outcome(document.verdict)
    if document.stats is None:
        return Measured(outcome, document.reason, complete=outcome is not Outcome.INCONCLUSIVE)
    planned = document.policy.process_pairs * document.policy.quads_per_pair
    quads = [quad for quad in document.samples if not quad.void]
    return Measured(
        outcome,
        document.reason,
        complete=outcome is not Outcome.INCONCLUSIVE or document.stats.quads >= planned,
        ratio=document.stats.ratio_median,
        low=document.stats.ci_low,
        high=document.stats.ci_high,
        saved_seconds=statistics.median(_seconds(quad, "baseline") - _seconds(quad, "candidate") for quad in quads),
        baseline_seconds=statistics.median(_seconds(quad, "baseline") for quad in quads),
        quads=document.stats.quads,
    )


def _seconds(quad: QuadPart, arm: str) -> float:
    return statistics.mean(statistics.median(block.seconds) for block in quad.blocks if block.arm == arm)


def summary(cases: Iterable[CaseResult], minimum_speedup: float) -> Summary:
    """The figures; `minimum_speedup` is what the policy asked for."""
    tried = [one for case in cases for one in case.tried]
    pairs = list(_compared(tried))
    seconds = [(predicted, saved) for predicted, saved, _ in pairs]
    percent = [(100 * predicted / step, 100 * saved / step) for predicted, saved, step in pairs]
    again = Counter(one.replicated(minimum_speedup) for one in tried if one.promoted)
    return Summary(
        trials=len(tried),
        incomplete=sum(not one.trial.complete for one in tried),
        failed=sum(one.trial.failed for one in tried),
        unpriced=dict(Counter(name for one in tried if one.single for name in one.unpriced)),
        compared=len(pairs),
        rho_seconds=rank_correlation(seconds),
        rho_percent=rank_correlation(percent),
        error_seconds=_mean(abs(predicted - saved) for predicted, saved in seconds),
        bias_seconds=_mean(predicted - saved for predicted, saved in seconds),
        error_percent=_mean(abs(predicted - saved) for predicted, saved in percent),
        bias_percent=_mean(predicted - saved for predicted, saved in percent),
        promoted=again.total(),
        replicated=again[True],
        not_replicated=again[False],
        fewest_replicated=_fewest(again[True], again[True] + again[False]),
    )


def _compared(tried: Sequence[Tried]) -> Iterator[tuple[float, float, float]]:
    """Predicted and measured savings and the baseline's time, where all are known."""
    for one in tried:
        trial = one.trial
        if one.predicted_seconds is None or not trial.complete:
            continue
        if trial.saved_seconds is not None and trial.baseline_seconds is not None:
            yield one.predicted_seconds, trial.saved_seconds, trial.baseline_seconds


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rho; None of too few pairs, or where one side is the same in all."""
    if len(pairs) < FEWEST_RANKED or any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return None
    rho = float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)
    return None if math.isnan(rho) else rho


def verdicts(cases: Sequence[CaseResult], figures: Summary) -> tuple[Verdict, ...]:
    """The two bounds, judged on what was measured."""
    again = figures.replicated + figures.not_replicated
    rate = figures.replication
    sure = "" if figures.fewest_replicated is None else f", so at least {figures.fewest_replicated:.0%} of such"
    known = [(graph.over_best, case.title) for case in cases for graph in case.graphs if graph.over_best is not None]
    slowest = min(known, default=None)
    judged = [graph.holds for case in cases for graph in case.graphs if graph.best_single is not None]
    unknown = judged.count(None)
    return (
        Verdict(
            f"promotions that hold when measured again (>= {REPLICATION_BOUND:.0%})",
            rate,
            None if rate is None else rate >= REPLICATION_BOUND,
            f"{figures.replicated} of {again}{sure}; {figures.promoted - again} not measured again",
        ),
        Verdict(
            f"autopilot over the best single candidate (>= {NOISE})",
            None if slowest is None else slowest[0],
            False if False in judged else None if unknown or not judged else True,
            f"{judged.count(True)} of {len(judged)} graphs, {unknown} not known"
            + ("" if slowest is None else f"; slowest: {slowest[1]}"),
        ),
    )


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.mean(found) if found else None


def _fewest(successes: int, count: int) -> float | None:
    if not count:
        return None
    return float(stats.binomtest(successes, count).proportion_ci(0.95).low)
