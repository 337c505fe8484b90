"""Find the runs of a fleet in a folder, an archive or a remote store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from frx_graph.errors import EvidenceError
from frx_graph.fleet.messages import Answer, Failure, ReadingTask
from frx_graph.fleet.reader import Reader
from frx_graph.fleet.remote import RemoteStore, is_url
from frx_graph.fleet.run_names import find_runs

PART_BYTES: Final = 16 << 20
"""Size of the parts in which several readers read an archive; each part reads the directory once more."""
Place = ReadingTask | Failure


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A folder or zip of runs. Other processes open it themselves and receive its places."""

    path: Path

    def list_places(self) -> Iterator[Place]:
        """Yield the runs and archives in order of their names, and folders that cannot be listed.

        Raises `EvidenceError` if the path is neither a folder nor a file.
        """
        path = self.path
        if path.is_file():
            yield from _split_archive(path, path.name)
            return
        if not path.is_dir():
            hint = "frx fleet takes a folder of runs, a zip of some, or a URL"
            raise EvidenceError(f"{path}: no such file or folder", hint)
        problems: list[Failure] = []
        runs, archives = find_runs(_iterate_files(path, problems))
        yield from problems
        for run in runs:
            yield ReadingTask(kind="folder", path=str(path / run), name=run or path.resolve().name)
        for archive in archives:
            yield from _split_archive(path / archive, archive)

    def read_place(self, place: Place, reader: Reader) -> Iterator[Answer]:
        """Read a place; a place that cannot be read is its own answer."""
        yield from [place] if isinstance(place, Failure) else reader.read_task(place)


def open_source(source: str) -> LocalSource | RemoteStore:
    """Open a path, or a URL that fsspec supports. Raises `EvidenceError` if no driver supports it."""
    if not is_url(source):
        return LocalSource(Path(source))
    store = RemoteStore(source)
    return store if store.local is None else LocalSource(store.local)


def _split_archive(path: Path, name: str) -> Iterator[Place]:
    try:
        parts = 1 + path.stat().st_size // PART_BYTES
    except OSError as error:
        yield Failure(name, f"cannot be read: {error.strerror or error}")
        return
    for part in range(parts):
        yield ReadingTask(kind="archive", path=str(path), name=name, part=part, parts=parts)


def _iterate_files(folder: Path, problems: list[Failure]) -> Iterator[str]:
    """Yield the files below a folder, by relative name. Links to folders, which may form a cycle, are not followed."""
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
