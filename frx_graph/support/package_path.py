"""Make this package importable in processes that it starts, installed or not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PACKAGE_PARENT = str(Path(__file__).absolute().parents[2])
"""The folder that contains `frx_graph`."""


def package_pythonpath(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return `PYTHONPATH` with this package behind what `environment` already lists."""
    given = environment.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (given, PACKAGE_PARENT)))}
