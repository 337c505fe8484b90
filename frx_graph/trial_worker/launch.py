"""Start the arms of trials: fresh processes that run this package, installed or not."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from frx_graph.measure.machine.control_groups import get_available_memory
from frx_graph.support.supervisor.process import extend_pythonpath
from frx_graph.trials.arm_process import ArmProcess, Limits

MEMORY_SHARE = 0.8
"""Share of the available memory that an arm may use. The second arm of a pair gets the same limits as the first."""


def start_arm(limits: Limits | None = None, *, environment: Mapping[str, str] | None = None) -> ArmProcess:
    """Start `python -m frx_graph.trial_worker`, with `environment` added to this process's own; by default it may use
    `MEMORY_SHARE`. Raises `ArmError`."""
    if limits is None:
        available = get_available_memory()
        limits = Limits() if available is None else Limits(memory_bytes=int(MEMORY_SHARE * available))
    command = [sys.executable, "-m", "frx_graph.trial_worker"]
    return ArmProcess(command, limits=limits, environment={**(environment or {}), **extend_pythonpath()})
