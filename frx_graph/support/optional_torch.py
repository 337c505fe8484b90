"""Find out if torch is installed, without importing it. Whatever reads files works without torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

INSTALL_TORCH = (
    "Models are advised on, tried and compiled with it: pip install 'frx-graph[torch]', or the build for your device "
    "from pytorch.org"
)


def is_torch_installed() -> bool:
    """Return True if `import torch` would find it."""
    return find_torch_folder() is not None


def find_torch_folder() -> Path | None:
    """Return the folder of the installed torch; None without one."""
    found = importlib.util.find_spec("torch")
    return None if found is None or found.origin is None else Path(found.origin).parent
