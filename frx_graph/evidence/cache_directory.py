"""Where measurements of this machine are kept between runs, and how they are written there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "FRX_CACHE_DIR"


def cache_directory() -> Path:
    """The directory that `FRX_CACHE_DIR` names, else the platform's cache directory for `frx-graph`."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("frx-graph"))


def write_atomically(path: Path, text: str) -> bool:
    """Replace `path` by a file holding `text`, so that a reader sees the old one or the new one; False, and no file
    left behind, where the place cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError:
        return False
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        return False
    return True
