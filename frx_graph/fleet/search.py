"""Where runs are below a folder of this machine, or in an archive: what readers are asked to read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from frx_graph.errors import EvidenceError
from frx_graph.fleet.reader import Failure
from frx_graph.fleet.reading_task import ReadingTask
from frx_graph.fleet.run_names import runs_among

PART_BYTES: Final = 16 << 20
"""Archives are read in parts of this size by several readers: each part means to read the directory once more."""
Place = ReadingTask | Failure


def local_places(path: Path) -> Iterator[Place]:
    """The places at or below `path`, in order of their names, and folders that cannot be looked into. Raises
    `EvidenceError` for what is neither a folder nor a file."""
    if path.is_file():
        yield from _archive(path, path.name)
        return
    if not path.is_dir():
        raise EvidenceError(
            f"{path}: no such file or folder", "frx fleet takes a folder of runs, a zip of some, or a URL"
        )
    problems: list[Failure] = []
    runs, archives = runs_among(_files(path, problems))
    yield from problems
    for run in runs:
        yield ReadingTask(kind="folder", path=str(path / run), name=run or path.resolve().name)
    for archive in archives:
        yield from _archive(path / archive, archive)


def _archive(path: Path, name: str) -> Iterator[Place]:
    try:
        parts = 1 + path.stat().st_size // PART_BYTES
    except OSError as error:
        yield Failure(name, f"cannot be read: {error.strerror or error}")
        return
    for part in range(parts):
        yield ReadingTask(kind="archive", path=str(path), name=name, part=part, parts=parts)


def _files(folder: Path, problems: list[Failure]) -> Iterator[str]:
    """Files below, by their names from there; links to folders are not followed, which might lead in a circle."""
    waiting = [""]
    while waiting:
        above = waiting.pop()
        try:
            with os.scandir(folder / above) as entries:
                for entry in entries:
                    name = f"{above}/{entry.name}" if above else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(name)
                    elif entry.is_file():
                        yield name
        except OSError as error:
            problems.append(Failure(above or str(folder), f"cannot be looked into: {error.strerror or error}"))
