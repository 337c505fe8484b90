"""Read the policy: the conditions for using a rewrite, and the cost limits of trials.

A policy is written in YAML, or under `[tool.frx.policy]` in pyproject.toml; a missing key has its default:

    minimum_speedup: 0.05
    time_budget_seconds: 120
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from frx_graph.errors import PolicyError, suggest_name, summarize_error
from frx_graph.records import Risk

FEWEST_QUADS = 5
"""Fewest quads of a trial. With fewer, `frx_graph.trials.statistics` trims nothing, and one bad quad decides."""


class TrialPolicy(BaseModel):
    """The thresholds and the method of a trial. docs/internals/trials.md has the figures behind the defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    minimum_speedup: float = Field(
        default=0.03,
        gt=0,
        le=10,
        description="smallest gain worth a change: the baseline's time over the candidate's, minus 1",
    )
    memory_headroom: float = Field(
        default=0.10,
        ge=0,
        description="how far a candidate's peak memory may exceed the baseline's, as a fraction of it",
    )
    weight_copies: float = Field(
        default=2.0,
        ge=0,
        description="how many more copies of weights and inputs a candidate that freezes weights may hold: it packs "
        "them, and the program keeps its own",
    )
    time_budget_seconds: float = Field(
        default=600.0,
        gt=0,
        description="wall time for all trials of one program, with asking for candidates, in seconds",
    )
    patience_seconds: float = Field(
        default=120.0,
        gt=0,
        description="longest that a candidate may take for an answer, or ten times as long as the baseline took, in "
        "seconds; the baseline has as long as the time budget lasts",
    )
    risk: Risk = Field(
        default=Risk.MEDIUM, description="highest tier of risk that is tried and applied: LOW, MEDIUM, or HIGH"
    )
    numerics_multiplier: float = Field(
        default=2.0, gt=0, description="how many times the baseline's own error against float64 a candidate's may be"
    )
    numerics_multiplier_half: float = Field(
        default=3.0, gt=0, description="the same where values are in half precision (float16, bfloat16)"
    )
    process_pairs: int = Field(
        default=6,
        ge=2,
        le=100,
        description="pairs of fresh processes, one for each arm, that a trial measures in; if off by 2 %, "
        "two prove no gain below 25 %, three none below 7 %",
    )
    extra_process_pairs: int = Field(
        default=6,
        ge=0,
        le=100,
        description="process pairs that are added once if the others leave the verdict open; then the mean of all must "
        "show what otherwise every pair must",
    )
    pair_agreement: Literal["minimum", "half", "direction"] = Field(
        default="half",
        description="what every process pair's own median must show: the minimum speed-up, half of it, or any speed-up "
        "(direction)",
    )
    quads_per_pair: int = Field(
        default=6, ge=1, le=1000, description="quads of four blocks (ABBA, BAAB) in each process pair"
    )
    steps_per_block: int = Field(default=3, ge=1, le=1000, description="steps that one arm runs in a block, in a row")
    void_quads_allowed: int = Field(
        default=14,
        ge=0,
        description="disturbed quads that are run again before a trial is given up, in all its process pairs",
    )
    alpha: float = Field(
        default=0.001,
        ge=1e-9,
        lt=0.5,
        description="probability of a false positive that all candidates of a program have together, of one side",
    )
    process_bias: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description="assumed standard deviation of the ratio of two fresh processes' times that run the same program; "
        "pooled with what a trial's process pairs show",
    )
    in_process_extra: float = Field(
        default=0.10,
        ge=0,
        le=10,
        description="added to the minimum speed-up where both arms share the user's one process",
    )
    seed: int = Field(default=0, ge=0, description="of the order in which arms run, and of the inputs they get")
    canary_interval_steps: int | None = Field(
        default=None,
        gt=0,
        description="promoted rewrites are measured again, by one quad, every so many steps; null: never",
    )
    agreement_seconds: float = Field(
        default=120.0,
        gt=0,
        description="longest that a rank of a distributed program waits for the others' word on a plan, in seconds; "
        "added to the time budget while the first rank tries",
    )
    decision_max_age_days: float = Field(default=30.0, gt=0, description="age in days at which a decision expires")

    @field_validator("*", mode="before")
    @classmethod
    def _reject_bool(cls, given: object) -> object:
        # To Python True is the number 1.
        if isinstance(given, bool):
            raise ValueError("Input should not be true or false")
        return given

    @field_validator("risk", mode="before")
    @classmethod
    def _normalize_risk(cls, given: object) -> object:
        return given.upper() if isinstance(given, str) else given

    @model_validator(mode="after")
    def _check_quads(self) -> TrialPolicy:
        if self.process_pairs * self.quads_per_pair < FEWEST_QUADS:
            raise ValueError(f"process_pairs times quads_per_pair must be at least {FEWEST_QUADS}")
        return self

    @property
    def hash(self) -> str:
        """16 hex digits that are the same for equal policies, on every machine."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


TUNE_POLICY = TrialPolicy(minimum_speedup=0.08, pair_agreement="direction", extra_process_pairs=0)
"""The policy for a setting of a whole program. From 8 % on, all process pairs only need the same sign."""


def parse_policy(given: Mapping[str, Any], where: str) -> TrialPolicy:
    """Check the policy read from `where`. Raises `PolicyError` for an unknown key or a value out of range."""
    known = TrialPolicy.model_fields
    for key in given:
        if key not in known:
            raise PolicyError(f"{where}: unknown key {key!r}", suggest_name(str(key), known, "known keys"))
    try:
        return TrialPolicy(**given)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise PolicyError(f"{where}: {first['msg'].removeprefix('Value error, ')}", "raise one of them") from error
        name = str(first["loc"][0])
        message = f"{where}: {name} is {given[name]!r}: {first['msg'].removeprefix('Value error, ')}"
        raise PolicyError(message, f"{name}: {known[name].description}") from error


def read_policy(path: Path) -> TrialPolicy:
    """Read the policy of a YAML file; an empty file has all defaults. Raises `PolicyError`."""
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(f"policy {path} cannot be read: {error.strerror}", "name a YAML file") from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"policy {path} is not text in UTF-8", "name a YAML file") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise PolicyError(f"policy {path}{place} is not YAML: {problem}", "write lines of 'key: value'") from error
    except (AttributeError, LookupError, RecursionError, ValueError) as error:
        # A value looks like a time or a number, but is invalid: PyYAML lets Python's error through.
        message = f"policy {path} has a value that cannot be read: {summarize_error(error)}"
        raise PolicyError(message, "write lines of 'key: value'") from error
    if given is None:
        return TrialPolicy()
    if not isinstance(given, dict):
        raise PolicyError(f"policy {path} holds a {type(given).__name__}, no keys", "write lines of 'key: value'")
    return parse_policy(given, f"policy {path}")
