"""Locate and write the cache of this machine's measurements."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from frx_graph.support.atomic_file import write_atomically

CACHE_VARIABLE = "FRX_CACHE_DIR"


def get_cache_directory() -> Path:
    """Return the directory that `FRX_CACHE_DIR` names, else the platform's cache directory for `frx-graph`."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("frx-graph"))


def get_own_contracts() -> Path:
    """Return the folder in which `frx probe` keeps this machine's contracts."""
    return get_cache_directory() / "contracts"


def write_cache_entry(path: Path, text: str) -> bool:
    """Write an entry of the cache; False, and nothing left behind, where the place cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError:
        return False
    return True
