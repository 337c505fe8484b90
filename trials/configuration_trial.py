"""Describe a configuration of a program, a set of environment variables, and its trials."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from frx_graph.trials.samples import Block, Disturbance
from frx_graph.trials.schedule import Arm


class Tier(enum.IntEnum):
    """The risk of trying a configuration."""

    SAFE = 0
    """The configuration changes data loading or memory management."""
    VALIDATED = 1
    """The configuration may change the results or the memory use; gates check both."""
    RISKY = 2
    """The configuration does more than run the program, or may take very long."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Environment variables that are added to a program's environment."""

    id: str
    """The folder's name: letters, digits, dashes."""
    label: str
    """The name in reports: `dl:nw=4,pin=T`."""
    family: str
    tier: Tier
    variables: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Steps that one arm ran in a row. All count, each from the end of the step before to its own end."""

    arm: Arm
    step_seconds: tuple[float, ...]
    samples: int | None = None
    """Samples in all of these steps; None if the program does not report them."""
    disturbance: Disturbance | None = None

    @property
    def seconds(self) -> float:
        """Mean seconds of a step."""
        return sum(self.step_seconds) / len(self.step_seconds)

    @property
    def seconds_per_sample(self) -> float | None:
        """None if the number of samples is unknown."""
        return None if not self.samples else sum(self.step_seconds) / self.samples

    def block(self, *, by_sample: bool) -> Block:
        """Return the block with one time. Raises `ValueError` if samples are asked for and unknown."""
        seconds = self.seconds_per_sample if by_sample else self.seconds
        if seconds is None:
            raise ValueError("the number of samples in a step is unknown")
        return Block(self.arm, (seconds,), self.disturbance)


@dataclass(frozen=True, slots=True)
class StepQuad:
    """Four blocks in the order they were run."""

    pair: int
    number: int
    log_ratio: float
    """Log ratio of the arms' times, baseline over candidate."""
    void: bool
    blocks: tuple[StepBlock, ...]


@dataclass(frozen=True, slots=True)
class Gain:
    """Ratios of times, baseline over candidate: 1.1 is 10 % faster."""

    ratio: float
    """Median of all undisturbed quads."""
    low: float | None
    """None: too few quads to bound anything, as in a race."""
    high: float | None
    quads: int
    processes: int
    pair_ratios: tuple[float, ...]
    void: int


@dataclass(frozen=True, slots=True)
class RunSeen:
    """One whole run of a program, alone. None: unknown."""

    exit_code: int | None
    """None for a program that was ended here, after its steps or its time."""
    ending: str
    in_time: bool
    """True if its steps were made within its time."""
    steps: int
    step_seconds: tuple[float, ...]
    """Durations of the steps behind the warm-up, from batch to batch."""
    samples: int | None
    """Samples in these steps together."""
    batch_size: int | None
    losses: tuple[float | None, ...]
    """Losses of all steps that have one, in order; None for one that is not finite."""
    outputs: tuple[tuple[str, float | None], ...]
    """Figures of the outputs in the last step; None for one that is not finite."""
    workers: int | None
    batch_layouts: int
    peak_bytes: int | None
    """Resident memory of all its processes."""
    memory_ratio: float | None
    """The peak's share of all memory; of the device's if there is one."""
    device_busy_percent: float | None
    bottleneck: str | None

    @property
    def seconds_per_step(self) -> float | None:
        """The mean after the warm-up."""
        return sum(self.step_seconds) / len(self.step_seconds) if self.step_seconds else None

    @property
    def samples_per_second(self) -> float | None:
        """The mean after the warm-up."""
        return self.samples / sum(self.step_seconds) if self.samples and self.step_seconds else None

    @property
    def finite(self) -> bool:
        """True if all losses are finite."""
        return None not in self.losses


class Kind(enum.StrEnum):
    """The purpose of a trial."""

    RACE = "race"
    """A short trial that selects candidates for a full one. It cannot promote."""
    FULL = "full"
    """A trial against the result of the earlier stages."""
    FINAL = "final"
    """All changes together against the original program: the gain that is claimed."""


class Fate(enum.StrEnum):
    """The outcome of a configuration."""

    PROMOTE = "promote"
    REJECT = "reject"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    REFUSED = "refused"
    """The candidate was not tried, since it would be unsafe or cannot work here."""
    RACED = "raced"
    """Fast enough in its race for a full trial."""
    SCREENED = "screened"
    """Others were faster in the race."""


@dataclass(frozen=True, slots=True)
class ConfigurationTrial:
    """A configuration, its baseline, and the outcome."""

    kind: Kind
    configuration: Configuration
    against: tuple[tuple[str, str], ...]
    fate: Fate
    reason: str
    seen: RunSeen | None = None
    gain: Gain | None = None
    by_sample: bool = False
    """True if times are per sample, since batch sizes differ."""
    one_at_a_time: bool = False
    quads: tuple[StepQuad, ...] = ()
