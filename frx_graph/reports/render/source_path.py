"""Name source files relative to the project or to the installed packages."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from frx_graph.support.plain_text import clean_line

_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/(?P<rest>.+)$", re.DOTALL)


def shorten_path(file: str, root: Path) -> str:
    """Return `file` relative to site-packages or to `root`, with forward slashes; else unchanged. Does not read the
    disk."""
    if file.startswith("<"):
        return file
    installed = _INSTALLED.match(file.replace(os.sep, "/"))
    if installed is not None:
        return installed["rest"]
    return get_project_path(file, root) or file


def find_checkout_root(start: Path) -> Path:
    """Return the nearest git checkout at or above `start`; `start` if there is none."""
    folder = start.absolute()
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), folder)


def get_project_path(file: str, root: Path) -> str | None:
    """Return `file` relative to `root` with forward slashes; None for files outside it and of installed packages."""
    if file.startswith("<") or _INSTALLED.match(file.replace(os.sep, "/")):
        return None
    path = PurePosixPath(os.path.normpath(root / file).replace(os.sep, "/"))
    base = PurePosixPath(os.path.normpath(root).replace(os.sep, "/"))
    return str(path.relative_to(base)) if path.is_relative_to(base) and path != base else None


def cut_path(path: str, limit: int) -> str:
    """Return a printable path. If it is too long, keep its end with the file name."""
    path = clean_line(path, len(path) + 1)
    return path if len(path) <= limit else f"…{path[1 - limit :]}"
