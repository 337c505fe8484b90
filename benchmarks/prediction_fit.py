"""Fit the calibration of predicted gains to measured ones, and judge it on networks that were left out of the fit.

The scale is the slope through the origin of measured over predicted logarithms of speed-ups, by least absolute
deviations: a weighted median. A scale for each kind of rewrite predicted other networks less well than one for all.
The width is a conformal quantile over networks, as candidates of one network are alike: each network has the same
weight, shared by its candidates, and one more network counts as infinitely far off (Dunn, Wasserman and Ramdas 2022,
"Distribution-free prediction sets for two-layer hierarchical models").
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autopilot_results import rank_correlation

from frx_graph.rules.predicted_gain import (
    NOISE,
    Calibration,
    Gain,
    PredictedGain,
    classify_gain,
    compute_log_speedup,
    compute_share,
    predict_gain,
)

COVERAGE = 0.80
FEWEST_CANDIDATES = 60
LEAST_RHO = 0.85
MOST_ERROR = 0.25
COVERAGE_BOUNDS = (0.72, 0.88)
LEAST_GAIN = 0.02
"""Relative errors are of candidates whose measured gain or loss is at least this share of a step."""
_WIDEST = 1e3
"""Width if there are too few networks for a quantile: the interval then says nothing."""


@dataclass(frozen=True)
class Point:
    """One candidate: what was predicted, and the measured ratio of the baseline's time over the candidate's."""

    network: str
    predicted_seconds: float
    run_seconds: float
    ratio: float

    @property
    def predicted(self) -> float:
        """The predicted logarithm of the speed-up."""
        return compute_log_speedup(self.predicted_seconds / self.run_seconds)

    @property
    def measured(self) -> float:
        """The measured logarithm of the speed-up."""
        return math.log(self.ratio)

    @property
    def share(self) -> float:
        """The measured share of a step that is saved."""
        return compute_share(self.measured)


def weighted_median(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the least value up to which half of all weight lies; 1 if no pair of value and weight has any weight."""
    known = sorted(pair for pair in pairs if pair[1] > 0)
    half, total = sum(weight for _, weight in known) / 2, 0.0
    for value, weight in known:
        total += weight
        if total >= half:
            return value
    return 1.0


def fit_scale(points: Iterable[Point]) -> float:
    """Return the slope through the origin of least absolute deviations; 1 without points. A negative one is 0."""
    pairs = [(p.measured / p.predicted, abs(p.predicted)) for p in points if p.predicted]
    return max(0.0, weighted_median(pairs))


def conformal_quantile(scores: Mapping[str, Sequence[float]], coverage: float) -> float:
    """Return the width that covers a candidate of one more network with this probability; infinite for too few.

    `scores` are errors by network. Each of n networks weighs 1/(n + 1), whatever its number of candidates.
    """
    known = {network: values for network, values in scores.items() if values}
    weighted = sorted((score, 1 / ((len(known) + 1) * len(values))) for values in known.values() for score in values)
    total = 0.0
    for score, weight in weighted:
        total += weight
        if total >= coverage - 1e-12:
            return score
    return math.inf


def fit(points: Sequence[Point], coverage: float = COVERAGE) -> Calibration:
    """Return the calibration for these points, without figures about its accuracy.

    The scale is fitted to all but the network whose errors are counted, so that the width is not too narrow.
    """
    networks = sorted({point.network for point in points})
    scores: dict[str, list[float]] = {}
    for network in networks:
        scale = fit_scale(point for point in points if point.network != network)
        scores[network] = [_score(point, scale) for point in points if point.network == network]
    width = conformal_quantile(scores, coverage)
    return Calibration(
        coverage=coverage,
        scale=round(fit_scale(points), 4),
        width=max(round(width, 4), 1e-4) if math.isfinite(width) else _WIDEST,
        networks=len(networks),
        candidates=len(points),
        reached=False,
    )


def _score(point: Point, scale: float) -> float:
    centre = scale * point.predicted
    return abs(point.measured - centre) / (NOISE + abs(centre))


@dataclass(frozen=True)
class Accuracy:
    """Figures of predictions. Unknown is None.

    `rho_raw` and `error_raw` are those of the predictions before any calibration.
    """

    candidates: int
    networks: int
    rho: float | None
    rho_raw: float | None
    error: float | None
    error_raw: float | None
    ratio_error: float | None
    coverage: float | None
    confusion: Mapping[tuple[Gain, Gain], int]
    """Number of candidates by predicted and measured class."""

    @property
    def reached(self) -> bool:
        """True if all goals of accuracy are reached."""
        if self.rho is None or self.error is None or self.coverage is None:
            return False
        low, high = COVERAGE_BOUNDS
        return (
            self.candidates >= FEWEST_CANDIDATES
            and self.rho >= LEAST_RHO
            and self.error <= MOST_ERROR
            and low <= self.coverage <= high
        )


def leave_one_out(points: Sequence[Point], coverage: float = COVERAGE) -> list[tuple[Point, PredictedGain]]:
    """Return each point with the prediction of a calibration that was fitted to all other networks."""
    found: list[tuple[Point, PredictedGain]] = []
    for network in sorted({point.network for point in points}):
        fitted = fit([point for point in points if point.network != network], coverage)
        found += predict_all([point for point in points if point.network == network], fitted)
    return found


def predict_all(points: Sequence[Point], calibration: Calibration) -> list[tuple[Point, PredictedGain]]:
    """Return each point with the prediction of one calibration."""
    found: list[tuple[Point, PredictedGain]] = []
    for point in points:
        gain = predict_gain(point.predicted_seconds, point.run_seconds, calibration)
        assert gain is not None
        found.append((point, gain))
    return found


def judge(predicted: Sequence[tuple[Point, PredictedGain]]) -> Accuracy:
    """Return the figures of predictions."""
    points = [point for point, _ in predicted]
    pairs = [(gain.expected, point.share) for point, gain in predicted]
    raw = [(compute_share(point.predicted), point.share) for point in points]
    inside = [gain.low <= point.share <= gain.high for point, gain in predicted]
    return Accuracy(
        candidates=len(points),
        networks=len({point.network for point in points}),
        rho=rank_correlation(pairs),
        rho_raw=rank_correlation(raw),
        error=mean_relative_error(pairs),
        error_raw=mean_relative_error(raw),
        ratio_error=statistics.mean(abs((1 - t) / (1 - p) - 1) for p, t in pairs) if pairs else None,
        coverage=statistics.mean(inside) if inside else None,
        confusion=Counter((gain.gain, classify_gain(point.share)) for point, gain in predicted),
    )


def mean_relative_error(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Return the mean of error over measured share, of pairs whose measured share is worth mentioning."""
    errors = [abs(predicted - true) / abs(true) for predicted, true in pairs if abs(true) >= LEAST_GAIN]
    return statistics.mean(errors) if errors else None


def calibrate(points: Sequence[Point]) -> tuple[Calibration, Accuracy]:
    """Return the calibration for the package with what is known of its accuracy."""
    accuracy = judge(leave_one_out(points))
    figures = {
        "rank_correlation": _round(accuracy.rho),
        "mean_relative_error": _round(accuracy.error),
        "mean_ratio_error": _round(accuracy.ratio_error),
        "coverage_elsewhere": _round(accuracy.coverage),
        "reached": accuracy.reached,
    }
    return fit(points).model_copy(update=figures), accuracy


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def make_point(network: str, predicted: float | None, run: float | None, ratio: float | None) -> Point | None:
    """Return a point; None if one of its figures is unknown."""
    if predicted is None or not run or not ratio:
        return None
    return Point(network, predicted, run, ratio)


def print_accuracy(accuracy: Accuracy, show: Callable[[str], None] = print) -> None:
    """Print the figures, each beside its goal."""
    low, high = COVERAGE_BOUNDS
    show(f"{accuracy.candidates} candidates (goal {FEWEST_CANDIDATES}) of {accuracy.networks} networks")
    show(f"rank correlation: {_show(accuracy.rho)} (goal {LEAST_RHO}); uncalibrated {_show(accuracy.rho_raw)}")
    show(
        f"mean relative error of the gain: {_show(accuracy.error)} (goal at most {MOST_ERROR}); "
        f"uncalibrated {_show(accuracy.error_raw)}"
    )
    show(f"mean relative error of the speed-up: {_show(accuracy.ratio_error)}")
    show(f"within the {COVERAGE:.0%} interval: {_show(accuracy.coverage)} (goal {low} to {high})")
    show("")
    show("predicted \\ measured" + "".join(f"{gain:>8}" for gain in Gain))
    for predicted in Gain:
        counts = (accuracy.confusion.get((predicted, measured), 0) for measured in Gain)
        show(f"{predicted:<20}" + "".join(f"{count:>8}" for count in counts))
    show("")
    show("intervals are shown" if accuracy.reached else "the goals are not reached: reports show classes")


def _show(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
