"""Turn a predicted saving into an interval or a class, by how far predictions have been from measured gains.

A prediction is a share of a priced run. Its logarithm of the speed-up is scaled, and gets a width on both sides. Scale
and width were fitted to trials of a set of networks (`benchmarks/prediction_accuracy.py`) and are in
`predicted_gain.yaml`. The width is a conformal quantile over networks: for a share `coverage` of the predictions for
another such network, the measured gain is within the interval.

If the fit missed the goals of accuracy, or rests on too few networks, no percentage is shown, only a class.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

NOISE = 0.03
"""Added to the size of a predicted gain, in logarithms, before an error is divided by it: the error of no gain."""
MOST_SHARE = 0.95
"""Largest share of a run that a prediction counts as: its logarithm would grow without bound."""


_MOST_LOG = 20.0
"""Largest loss, as a logarithm, that an interval shows."""


class Gain(enum.StrEnum):
    """Classes of gains, by the share of a step that a change saves."""

    NONE = "none"
    """Less than 2 %, or a loss."""
    SOME = "some"
    """From 2 % to 10 %."""
    MUCH = "much"
    """More than 10 %."""


_SOME_FROM, _MUCH_FROM = 0.02, 0.10


class Calibration(BaseModel):
    """The fitted scale and width, and what they rest on."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    results: str = ""
    """The file in `benchmarks/results` that it was fitted to."""
    machine: str = ""
    """The machine whose lines in that file count."""
    coverage: float = Field(gt=0, lt=1)
    scale: float = Field(ge=0)
    width: float = Field(gt=0)
    """Half the interval's width, in units of `NOISE` plus the scaled prediction."""
    networks: int = Field(ge=0)
    candidates: int = Field(ge=0)
    rank_correlation: float | None = None
    mean_relative_error: float | None = None
    """Mean of error over gain, of gains and losses worth mentioning."""
    mean_ratio_error: float | None = None
    """Mean relative error of the speed-up, the ratio of both programs' times."""
    coverage_elsewhere: float | None = None
    """Share of measured gains within the interval, on networks that were left out of the fit."""
    reached: bool
    """True if the fit reached the goals of accuracy: intervals are shown, else classes."""


@dataclass(frozen=True, slots=True)
class PredictedGain:
    """Shares of a step that a change is expected to save, negative for a loss. The truth is between `low` and `high`
    for a share `coverage` of such predictions."""

    low: float
    expected: float
    high: float
    coverage: float
    reached: bool

    @property
    def gain(self) -> Gain:
        """The class of the expected gain."""
        return classify_gain(self.expected)

    def __str__(self) -> str:
        """Return the interval in percent of a step, or the class if predictions are not accurate enough for one."""
        if not self.reached:
            return f"predicted gain: {self.gain}"
        low, high = (round(100 * share) for share in (self.low, self.high))
        return f"predicted to save {low} to {high} % of a step ({self.coverage:.0%} interval)"


def classify_gain(share: float) -> Gain:
    """Return the class of a share of a step that is saved."""
    if share < _SOME_FROM:
        return Gain.NONE
    return Gain.SOME if share < _MUCH_FROM else Gain.MUCH


def compute_log_speedup(share: float) -> float:
    """Return the logarithm of the speed-up that saves `share` of a run."""
    return -math.log1p(-min(share, MOST_SHARE))


def compute_share(log_speedup: float) -> float:
    """Return the share of a run that a speed-up saves, from its logarithm."""
    return -math.expm1(min(-log_speedup, _MOST_LOG))


def predict_gain(
    predicted_seconds: float | None,
    run_seconds: float | None,
    calibration: Calibration | None = None,
) -> PredictedGain | None:
    """Return the interval for a plan that saves `predicted_seconds` of a run priced at `run_seconds`; None if one of
    them is unknown. Without `calibration`, that of the package."""
    if predicted_seconds is None or not run_seconds:
        return None
    fitted = load_calibration() if calibration is None else calibration
    centre = fitted.scale * compute_log_speedup(predicted_seconds / run_seconds)
    width = fitted.width * (NOISE + abs(centre))
    low, expected, high = (compute_share(value) for value in (centre - width, centre, centre + width))
    return PredictedGain(low, expected, high, fitted.coverage, fitted.reached)


@cache
def load_calibration() -> Calibration:
    """Return the calibration that the package was built with."""
    text = Path(__file__).with_name("predicted_gain.yaml").read_text(encoding="utf-8")
    return Calibration.model_validate(yaml.safe_load(text))
