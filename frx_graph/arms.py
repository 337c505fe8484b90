"""Starts the arms of trials: fresh processes that run this package's own code, wherever it lies."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from frx_graph.trials.arm_process import ArmProcess, Limits


def start_arm(limits: Limits | None = None) -> ArmProcess:
    """`python -m frx_graph.arm_start`, with the same interpreter and the same package. Raises `ArmError`."""
    return ArmProcess([sys.executable, "-m", "frx_graph.arm_start"], limits=limits, environment=where_this_is())


def where_this_is() -> Mapping[str, str]:
    """The package may be used from its folder, without being installed."""
    package = str(Path(__file__).absolute().parent.parent)
    given = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (given, package)))}
