"""Runs on another file system: any that fsspec has a driver for, such as `s3://` or `memory://`.

Files are fetched by this process, which has the credentials, into a folder that is gone when they are read. Of a run
whose summary is of files of the same names and sizes nothing else is fetched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from frx_graph.errors import EvidenceError, first_line
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle_zip import MOST_BYTES
from frx_graph.fleet.reader import Answer, Failure, Fetch, Reader
from frx_graph.fleet.reading_task import ReadingTask
from frx_graph.fleet.run_names import files_of, runs_among
from frx_graph.reports.plain_text import one_line
from frx_graph.run_summary import LONGEST_SUMMARY, raw_files

_SAMPLES: Final = str(bundle_layout.HOST_METRICS)
"""They make a bundle where there is nothing else."""
_SUMMARY: Final = str(bundle_layout.SUMMARY)
_CHUNK: Final = 1 << 20
_LARGEST_ARCHIVE: Final = 2 * MOST_BYTES
"""Where the older format ends, which is the one that is read."""


def is_url(source: str) -> bool:
    """Whether it names a file system, as in `s3://bucket/runs`."""
    scheme, separator, _ = source.partition("://")
    return bool(separator) and scheme.replace("+", "").replace("::", "").isalnum()


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """A run in `folder`, whose files have `sizes` bytes by their names in it. `name` is how it is called."""

    name: str
    folder: str
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class RemoteArchive:
    """An archive that may hold some."""

    name: str
    path: str
    size: int


RemotePlace = RemoteRun | RemoteArchive


class RemoteStore:
    """What is below a URL. Raises `EvidenceError` where there is no driver for it."""

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except Exception as error:  # noqa: BLE001 - a driver may raise anything
            hint = "install its driver for fsspec: s3fs, gcsfs, adlfs, ..."
            raise EvidenceError(f"{one_line(url)}: {first_line(error)}", hint) from None
        self._root = str(root).rstrip("/")
        self._url = one_line(url)

    @property
    def local(self) -> Path | None:
        """Where it is, if it is on this machine."""
        protocols = self._files.protocol
        names = (protocols,) if isinstance(protocols, str) else protocols
        return Path(self._root or "/") if "file" in names else None

    def places(self) -> Iterator[RemotePlace]:
        """Runs and archives, in order of their names. Raises `EvidenceError` where they cannot be listed."""
        sizes = self._listed()
        runs, archives = runs_among(sizes)
        for run, files in files_of(runs, sizes).items():
            above = f"{run}/" if run else ""
            inside = {name.removeprefix(above): sizes[name] for name in files}
            yield RemoteRun(run or self._root.rpartition("/")[2], f"{self._root}/{run}".rstrip("/"), inside)
        for archive in archives:
            yield RemoteArchive(archive, f"{self._root}/{archive}", sizes[archive])

    def answers(self, place: RemotePlace, reader: Reader) -> Iterator[Answer]:
        """What is at a place, fetched and read."""
        with tempfile.TemporaryDirectory(prefix="frx-fleet-") as folder:
            try:
                match place:
                    case RemoteArchive():
                        yield from self._archive(place, reader, Path(folder))
                    case RemoteRun():
                        yield from self._run(place, reader, Path(folder))
            except EvidenceError as error:
                yield Failure(place.name, str(error))

    def _archive(self, place: RemoteArchive, reader: Reader, folder: Path) -> Iterator[Answer]:
        local = folder / "runs.zip"
        self._fetch(place.path, local, place.size, _LARGEST_ARCHIVE)
        yield from reader.read(ReadingTask(kind="archive", path=str(local), name=place.name))

    def _run(self, place: RemoteRun, reader: Reader, folder: Path) -> Iterator[Answer]:
        raw = raw_files(place.sizes)
        length = place.sizes.get(_SUMMARY)
        if length is not None and length <= LONGEST_SUMMARY:
            summary = folder / "summary.json"
            self._fetch(f"{place.folder}/{_SUMMARY}", summary, length, LONGEST_SUMMARY)
            task = ReadingTask(kind="summary", path=str(summary), name=place.name, sizes=place.sizes)
            answers = list(reader.read(task))
            if not any(isinstance(answer, Fetch) for answer in answers):
                yield from answers
                return
        if not raw and _SAMPLES not in place.sizes:
            yield Failure(place.name, "has no files but a summary that this version of frx has not written")
            return
        # Where a run is analysed anew, its folder's name is its id.
        bundle = folder / (PurePosixPath(place.folder).name or "run")
        left = MOST_BYTES
        for name in [name for _, name in raw] + [_SAMPLES] * (_SAMPLES in place.sizes):
            target = bundle / name
            target.parent.mkdir(parents=True, exist_ok=True)
            self._fetch(f"{place.folder}/{name}", target, place.sizes[name], left)
            left -= place.sizes[name]
        yield from reader.read(ReadingTask(kind="folder", path=str(bundle), name=place.name))

    def _fetch(self, path: str, target: Path, size: int, most: int) -> None:
        """Copy a file of `size` bytes. Raises `EvidenceError` for one that is larger than `most`, or cannot be had."""
        if size > most:
            raise EvidenceError(f"{path} has {size} bytes, more than are fetched of a run")
        left = size
        try:
            with self._files.open(path, "rb") as source, target.open("xb") as file:
                while chunk := source.read(min(_CHUNK, left + 1)):
                    left -= len(chunk)
                    if left < 0:
                        break
                    file.write(chunk)
        except Exception as error:  # noqa: BLE001 - as above
            raise EvidenceError(f"{path} cannot be fetched: {first_line(error)}") from None
        if left:
            raise EvidenceError(f"{path} has changed while it was fetched: it had {size} bytes")

    def _listed(self) -> dict[str, int]:
        """Bytes of all files, by their names below the root. Where that is a file itself, the root is its folder."""
        try:
            found: dict[str, dict[str, Any]] = self._files.find(self._root, detail=True)
        except Exception as error:  # noqa: BLE001 - as above
            raise EvidenceError(f"{self._url}: cannot be listed: {first_line(error)}") from None
        if not found:
            raise EvidenceError(f"{self._url}: there is nothing", "frx fleet takes a folder of runs, or a zip of some")
        if list(found) == [self._root]:
            self._root = self._root.rpartition("/")[0]
        # A driver that does not tell a size is one of which nothing can be bounded.
        return {
            path.removeprefix(f"{self._root}/"): int(info["size"])
            for path, info in found.items()
            if info.get("size") is not None
        }
