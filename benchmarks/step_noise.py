"""How much longer than usual single steps take on machines that are not quiet: simulated, and recorded on one.

A noise has no arms: it is what the machine does, whatever runs. Factors multiply a step's time.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from frx_graph.errors import EvidenceError

Factors = NDArray[np.float64]

SPIKE = (1.2, 2.0)
"""How many times its usual time a step takes that is interrupted: uniform between the two."""
NEIGHBOUR_PHI = 1 - 1 / 40
"""A neighbour comes and goes when an AR(1) process crosses a level: it stays for dozens of steps."""
NEIGHBOUR_LEVEL = 0.5
"""In standard deviations of that process: the neighbour is there in 31 % of all steps."""


class Noise(Protocol):
    """A machine's noise."""

    @property
    def name(self) -> str: ...

    def factors(self, trials: int, steps: int, draw: np.random.Generator) -> Factors:
        """For each trial the factor of each of its steps, in the order they run: shape (trials, steps)."""
        ...


@dataclass(frozen=True)
class SyntheticNoise:
    """Slow drift, single slow steps, and a neighbour on the same machine."""

    name: str
    drift_phi: float
    """Correlation of the drift between one step and the next."""
    drift_sd: float
    """Standard deviation of the drift, of the logarithm of the time."""
    spikes: float
    """Share of all steps."""
    neighbour: float
    """How much longer steps take while the neighbour is there, as a fraction."""

    def factors(self, trials: int, steps: int, draw: np.random.Generator) -> Factors:
        drift = self.drift_sd * autoregressive(trials, steps, self.drift_phi, draw)
        spike = np.where(draw.random((trials, steps)) < self.spikes, draw.uniform(*SPIKE, (trials, steps)), 1.0)
        load = np.where(autoregressive(trials, steps, NEIGHBOUR_PHI, draw) > NEIGHBOUR_LEVEL, 1 + self.neighbour, 1.0)
        noise: Factors = np.exp(drift) * spike * load
        return noise


@dataclass(frozen=True)
class RecordedNoise:
    """Windows of a recording that begin anywhere in it; after its end it begins again."""

    name: str
    relative: Factors
    """Recorded times over their median, shape (steps,)."""

    def factors(self, trials: int, steps: int, draw: np.random.Generator) -> Factors:
        starts = draw.integers(0, len(self.relative), (trials, 1))
        windows: Factors = self.relative[(starts + np.arange(steps)) % len(self.relative)]
        return windows


SHARED = SyntheticNoise("shared", drift_phi=0.95, drift_sd=0.03, spikes=0.05, neighbour=0.08)
HOSTILE = SyntheticNoise("hostile", drift_phi=0.98, drift_sd=0.06, spikes=0.10, neighbour=0.25)


def autoregressive(trials: int, steps: int, phi: float, draw: np.random.Generator) -> Factors:
    """Stationary AR(1) processes with standard deviation 1: shape (trials, steps)."""
    innovations = draw.standard_normal((trials, steps)) * math.sqrt(1 - phi**2)
    innovations[:, 0] /= math.sqrt(1 - phi**2)
    process: Factors = lfilter([1.0], [1.0, -phi], innovations, axis=1)
    return process


def recorded(path: Path) -> RecordedNoise:
    """The noise in a recording (`record_steps.py` writes them). Raises `EvidenceError`."""
    try:
        seconds = np.asarray(json.loads(path.read_text())["seconds"], dtype=np.float64)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvidenceError(f"{path} holds no recording of steps", "make one with --record FILE") from error
    if seconds.ndim != 1 or len(seconds) < 1000 or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise EvidenceError(f"{path} is not 1000 step times or more, all above 0", "make one with --record FILE")
    return RecordedNoise("real", seconds / np.median(seconds))
