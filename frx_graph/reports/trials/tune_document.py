"""Tuning result as JSON: the document `frx_tune_v1`.

Unknown is null. Within v1 fields may be added, but none is removed or changes its meaning.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from frx_graph.reports.render.document import Part
from frx_graph.trials.configuration_trial import ConfigurationTrial, Fate, Kind, RunSeen

Status = Literal["running", "complete", "interrupted", "failed"]


class _DocumentedPart(Part):
    model_config = ConfigDict(use_attribute_docstrings=True)


class RulePart(_DocumentedPart):
    """Criteria for a configuration."""

    minimum_speedup: float
    alpha: float
    """One-sided error rate of one candidate. It bounds the family's over all candidates."""
    candidates: int
    """Divisor of alpha: the number of possible candidates, plus the final trial."""
    process_pairs: int
    quads_per_pair: int
    steps_per_block: int


class WinnerPart(_DocumentedPart):
    """The recommendation, with its measured gain over the original program."""

    label: str
    environment: dict[str, str]
    """The variables to set, in addition to those already set."""
    speedup: float
    """0.19: 19 % more steps in the same time, or more samples if batch sizes differ."""
    speedup_low: float | None
    """Exceeded with a probability of at least 1 - alpha."""
    by_sample: bool
    steps_per_second: float | None
    step_ms: float | None
    """Measured in a separate run of the whole program."""


class TuneDocument(_DocumentedPart):
    """One tune."""

    schema_: Literal["frx_tune_v1"] = Field(default="frx_tune_v1", alias="schema")
    id: str
    job: str
    command: tuple[str, ...]
    status: Status
    frx_version: str
    settings: dict[str, Any]
    """The flags, by name."""
    rule: RulePart | None
    baseline: RunSeen | None
    """Null if the tune did not get so far."""
    trials: tuple[ConfigurationTrial, ...]
    """In order of creation; refused candidates included."""
    left_out: tuple[str, ...]
    """Families and candidates that were not considered, each with the reason."""
    winner: WinnerPart | None
    applied: Literal[False] = False
    """Always false: frx only recommends."""


def find_winner(trials: tuple[ConfigurationTrial, ...]) -> WinnerPart | None:
    """From the final trial, if it was promoted."""
    final = next((t for t in trials if t.kind is Kind.FINAL and t.fate is Fate.PROMOTE), None)
    if final is None or final.gain is None:
        return None
    step = final.seen.seconds_per_step if final.seen is not None else None
    return WinnerPart(
        label=final.configuration.label,
        environment=dict(final.configuration.variables),
        speedup=final.gain.ratio - 1,
        speedup_low=None if final.gain.low is None else final.gain.low - 1,
        by_sample=final.by_sample,
        steps_per_second=1 / step if step else None,
        step_ms=1e3 * step if step else None,
    )
