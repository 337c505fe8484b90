"""Starts the arms of trials: fresh processes that run this package's own code, wherever it lies."""

from __future__ import annotations

import sys

from frx_graph.measure.machine.control_groups import available_memory
from frx_graph.support.package_path import package_pythonpath
from frx_graph.trials.arm_process import ArmProcess, Limits

MEMORY_SHARE = 0.8
"""Of the memory that is available when an arm starts; the rest is for whoever has started it. The second arm of a pair
has the limits of the first, rather than a share of what that one has left."""


def start_arm(limits: Limits | None = None) -> ArmProcess:
    """`python -m frx_graph.trial_worker`, with the same interpreter and the same package; without `limits` it may use
    `MEMORY_SHARE`. Raises `ArmError`."""
    limits = limits or _own_limits()
    return ArmProcess([sys.executable, "-m", "frx_graph.trial_worker"], limits=limits, environment=package_pythonpath())


def _own_limits() -> Limits:
    available = available_memory()
    return Limits() if available is None else Limits(memory_bytes=int(MEMORY_SHARE * available))
