"""Find and read the headers beside a CUDA file: `#include "name.cuh"`.

Their text goes behind the file's own, so that lines keep their numbers. Functions, types and constants of a header are
then known; its kernels and launches are not the file's. A header is looked for where the compiler looks first, beside
the file that names it, and then in the folders above and their `include`, as projects tell the compiler to. Nothing
outside the project is read: a file from elsewhere may name anything.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from frx_graph.errors import EvidenceError
from frx_graph.evidence.text_lines import read_whole_text

_INCLUDE = re.compile(r'^[ \t]*+#[ \t]*+include[ \t]*+"([^"\n]{1,200})"', re.MULTILINE)
_SUFFIXES = frozenset([".cu", ".cuh", ".h", ".hh", ".hpp", ".inl", ".hip", ".inc"])
_MOST_NAMES = 2_000
"""Limit on names that are looked for."""
_MOST_HEADERS = 100
"""Limit on headers that are read."""
_MOST_CHARACTERS = 1 << 20
"""Limit on all headers of a file together."""
_FOLDERS_ABOVE = 6
"""Limit on the folders above the file that may be its project's."""
_PROJECT_FILES = (".git", "CMakeLists.txt", "Makefile", "pyproject.toml", "setup.py", "meson.build")
"""A folder with one of them belongs to a project."""


@dataclass(frozen=True, slots=True)
class Header:
    """A header that was read, with its path as the file's own path leads to it."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Headers:
    """All headers of a file, also those that headers name. `missing` are names without a file."""

    read: tuple[Header, ...] = ()
    missing: tuple[str, ...] = ()


def read_headers(path: Path, text: str) -> Headers:
    """Read the headers of the file at `path`, whose content is `text`. One that cannot be read is missing."""
    folders = _list_folders(path)
    found: dict[Path, Header] = {}
    missing: dict[str, None] = {}
    left = _MOST_CHARACTERS
    waiting = deque((path, name) for name in _list_names(text))
    seen = {path.resolve()}
    for _ in range(_MOST_NAMES):
        if not waiting:
            break
        including, name = waiting.popleft()
        at = _find_header(name, [including.parent, *folders])
        if at is not None and at.resolve() in seen:
            continue
        content = None if at is None or len(found) == _MOST_HEADERS else _read_text(at, left)
        if at is None or content is None:
            missing[name] = None
            continue
        seen.add(at.resolve())
        left -= len(content)
        found[at] = Header(str(at), content)
        waiting.extend((at, one) for one in _list_names(content))
    return Headers(tuple(found.values()), tuple(missing))


def _list_names(text: str) -> Iterator[str]:
    return (one[1] for one in _INCLUDE.finditer(text))


def _list_folders(path: Path) -> list[Path]:
    """Return the folders in which headers are looked for, the last one the project's: the highest with a file that
    projects have. Without one, the file's own folder is the project."""
    above = [path.resolve().parent, *path.resolve().parent.parents][: _FOLDERS_ABOVE + 1]
    marked = [at for at, folder in enumerate(above) if any((folder / one).exists() for one in _PROJECT_FILES)]
    inside = above[: max(marked, default=0) + 1]
    return [*(folder / "include" for folder in inside), *inside]


def _find_header(name: str, folders: Sequence[Path]) -> Path | None:
    relative = PurePosixPath(name.replace("\\", "/"))
    if relative.is_absolute() or relative.suffix not in _SUFFIXES or "\0" in name:
        return None
    found = (folder / relative for folder in folders)
    return next((at for at in found if _is_file(at) and at.resolve().is_relative_to(folders[-1])), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _read_text(path: Path, longest: int) -> str | None:
    try:
        return read_whole_text(path, "a header of CUDA source", longest=longest)
    except EvidenceError:
        return None
