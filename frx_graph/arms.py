"""Starts the arms of trials: fresh processes that run this package's own code, wherever it lies."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import frx_graph
from frx_graph.trials.arm_process import ArmProcess, Limits


def start_arm(limits: Limits | None = None) -> ArmProcess:
    """`python -m frx_graph.trial_arm`, with the same interpreter and the same package. Raises `ArmError`."""
    return ArmProcess([sys.executable, "-m", "frx_graph.trial_arm"], limits=limits, environment=_where_this_is())


def _where_this_is() -> Mapping[str, str]:
    """The package may be used from its folder, without being installed."""
    package = str(Path(frx_graph.__file__).absolute().parent.parent)
    given = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (given, package)))}
