"""Read runs on another file system: any that fsspec has a driver for, such as `s3://` or `memory://`.

This process has the credentials, so it fetches files, into a folder that is removed after they are read. If a run's
summary names files of the same names and sizes, nothing else is fetched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from frx_graph.analyze.run_summary import LONGEST_SUMMARY, list_raw_files
from frx_graph.errors import EvidenceError, summarize_error
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle_zip import MOST_BYTES
from frx_graph.fleet.messages import Answer, Failure, Fetch, ReadingTask
from frx_graph.fleet.reader import Reader
from frx_graph.fleet.run_names import find_runs, group_files
from frx_graph.fleet.shown_source import ShownSource

_SAMPLES: Final = str(bundle_layout.HOST_METRICS)
"""A file that makes a bundle even without others."""
_SUMMARY: Final = str(bundle_layout.SUMMARY)
_CHUNK: Final = 1 << 20
_LARGEST_ARCHIVE: Final = 2 * MOST_BYTES
"""Size limit of the older zip format, the one that is read."""
_NOT_BELOW: Final = "has a name with an empty part, or `.` or `..`, which leads elsewhere"


def is_url(source: str) -> bool:
    """Return True for a URL with a file system, such as `s3://bucket/runs`."""
    scheme, separator, _ = source.partition("://")
    return bool(separator) and scheme.replace("+", "").replace("::", "").isalnum()


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """A run in `folder`; `sizes` maps its file names to bytes. `name` is its name in the report."""

    name: str
    folder: str
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class RemoteArchive:
    """An archive that may hold runs."""

    name: str
    path: str
    size: int


RemotePlace = RemoteRun | RemoteArchive | Failure


class RemoteStore:
    """The runs below a URL. Raises `EvidenceError` if no driver supports it."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._shown = ShownSource.from_source(url)
        try:
            self._files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            hint = "install its driver for fsspec: s3fs, gcsfs, adlfs, ..."
            raise EvidenceError(f"{self._shown.text}: {self._format_error(error)}", hint) from None
        except Exception as error:  # noqa: BLE001 - a driver may raise anything
            hint = "is that the address, and are the credentials there?"
            raise EvidenceError(f"{self._shown.text}: {self._format_error(error)}", hint) from None
        self._root = str(root).rstrip("/")

    @property
    def local(self) -> Path | None:
        """Return the path if it is on this machine."""
        protocols = self._files.protocol
        names = (protocols,) if isinstance(protocols, str) else protocols
        return Path(self._root or "/") if "file" in names else None

    def list_places(self) -> Iterator[RemotePlace]:
        """Yield runs and archives in order of their names, and names that cannot belong to a folder. Raises
        `EvidenceError` if they cannot be listed."""
        sizes = self._list_files()
        runs, archives = find_runs(sizes)
        for run, files in group_files(runs, sizes).items():
            if run and not _is_below(run):
                yield Failure(run, _NOT_BELOW)
                continue
            above = f"{run}/" if run else ""
            own = {name.removeprefix(above): sizes[name] for name in files}
            name = run or self._shown.hide(self._root.rpartition("/")[2])
            yield RemoteRun(name, f"{self._root}/{run}" if run else self._root, own)
        for archive in archives:
            place = RemoteArchive(archive, f"{self._root}/{archive}", sizes[archive])
            yield place if _is_below(archive) else Failure(archive, _NOT_BELOW)

    def read_place(self, place: RemotePlace, reader: Reader) -> Iterator[Answer]:
        """Fetch and read a place; one that cannot be read is its own answer."""
        with tempfile.TemporaryDirectory(prefix="frx-fleet-") as folder:
            try:
                match place:
                    case RemoteArchive():
                        local = Path(folder) / "runs.zip"
                        self._fetch(place.path, local, place.size, _LARGEST_ARCHIVE)
                        yield from reader.read_task(ReadingTask(kind="archive", path=str(local), name=place.name))
                    case RemoteRun():
                        yield from self._read_run(place, reader, Path(folder))
                    case Failure():
                        yield place
            except EvidenceError as error:
                yield Failure(place.name, str(error))
            except (OSError, ValueError) as error:
                # A store's names are any text: of what this machine cannot keep under its name the others are read.
                yield Failure(place.name, f"cannot be kept here while it is read: {self._format_error(error)}")

    def _read_run(self, place: RemoteRun, reader: Reader, folder: Path) -> Iterator[Answer]:
        raw = list_raw_files(place.sizes)
        length = place.sizes.get(_SUMMARY)
        if length is not None and length <= LONGEST_SUMMARY:
            summary = folder / "summary.json"
            self._fetch(f"{place.folder}/{_SUMMARY}", summary, length, LONGEST_SUMMARY)
            task = ReadingTask(kind="summary", path=str(summary), name=place.name, sizes=place.sizes)
            answers = list(reader.read_task(task))
            if not any(isinstance(answer, Fetch) for answer in answers):
                yield from answers
                return
        if not raw and _SAMPLES not in place.sizes:
            yield Failure(place.name, "has no files but a summary that this version of frx has not written")
            return
        # Never under its own name, which belongs to the store. If it is analysed again, the name is its id.
        bundle, left = folder / "run", MOST_BYTES
        for name in [name for _, name in raw] + [_SAMPLES] * (_SAMPLES in place.sizes):
            target = bundle / name
            target.parent.mkdir(parents=True, exist_ok=True)
            self._fetch(f"{place.folder}/{name}", target, place.sizes[name], left)
            left -= place.sizes[name]
        run_id = PurePosixPath(place.folder).name or "run"
        yield from reader.read_task(ReadingTask(kind="folder", path=str(bundle), name=place.name, run_id=run_id))

    def _fetch(self, path: str, target: Path, size: int, most: int) -> None:
        """Copy a file of `size` bytes. Raises `EvidenceError` if it is larger than `most`, or cannot be fetched."""
        shown = self._shown.hide(path)
        if size > most:
            raise EvidenceError(f"{shown} has {size} bytes, more than are fetched of a run")
        left = size
        try:
            with self._files.open(path, "rb") as source, target.open("xb") as file:
                while chunk := source.read(min(_CHUNK, left + 1)):
                    left -= len(chunk)
                    if left < 0:
                        break
                    file.write(chunk)
        except Exception as error:  # noqa: BLE001 - as above
            raise EvidenceError(f"{shown} cannot be fetched: {self._format_error(error)}") from None
        if left:
            raise EvidenceError(f"{shown} has changed while it was fetched: it had {size} bytes")

    def _list_files(self) -> dict[str, int]:
        """Return the bytes of all files, by their names below the root, or below its folder if it is a file."""
        try:
            found: dict[str, dict[str, Any]] = self._files.find(self._root, detail=True)
        except Exception as error:  # noqa: BLE001 - as above
            raise EvidenceError(f"{self._shown.text}: cannot be listed: {self._format_error(error)}") from None
        if not found:
            # Some drivers also return nothing if no server answers.
            hint = "frx fleet takes a folder of runs, or a zip of some; is that the address?"
            raise EvidenceError(f"{self._shown.text}: there is nothing, or no server answers", hint)
        if list(found) == [self._root]:
            self._root = self._root.rpartition("/")[0]
        # Without a size from the driver, nothing can be bounded.
        return {
            path.removeprefix(f"{self._root}/"): int(info["size"])
            for path, info in found.items()
            if info.get("size") is not None
        }

    def _format_error(self, error: Exception) -> str:
        return self._shown.hide(summarize_error(error))


def _is_below(name: str) -> bool:
    """Return True for a name of nested folders. A key of an object store may be any text."""
    return not any(part in ("", ".", "..") for part in name.split("/"))
