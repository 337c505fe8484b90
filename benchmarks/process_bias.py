"""How much longer all steps of one process take than those of another that runs the same program: simulated.

What makes it is drawn once, when a process starts (where its memory lies, which pages it has), and stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ProcessBias:
    """A distribution of processes."""

    name: str
    deviation: float
    """Standard deviation of the log ratio of two processes' times."""
    slow: float = 0.0
    """How much longer the steps of every other process take, as a fraction; which, is chance."""

    def logarithms(self, trials: int, processes: int, draw: np.random.Generator) -> NDArray[np.float64]:
        """For each process the logarithm of the factor of all its steps: shape (trials, processes)."""
        shape = (trials, processes)
        usual = draw.normal(0.0, self.deviation / 2**0.5, shape)
        return usual + math.log1p(self.slow) * (draw.random(shape) < 0.5) if self.slow else usual


ASSUMED = ProcessBias("", 0.02)
"""What the policies' `process_bias` assumes."""
WIDE = ProcessBias("wide", 0.08)
BIMODAL = ProcessBias("bimodal", 0.02, slow=0.3)
"""Half of all processes are 30 % slower, as those of a small convolutional network under Inductor were seen to be."""
