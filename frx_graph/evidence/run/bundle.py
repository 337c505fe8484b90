"""Open the bundle of a run, a folder or a zip, without reading or writing anything outside it.

A folder is used in place. A zip is checked before anything is written. If it does not look like the zip of a bundle,
all of it is refused: nothing is repaired, since its author may have meant another file. Then the required files
(`bundle_layout`) are extracted into a private folder, which is removed in the end.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from frx_graph.errors import EvidenceError
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle_zip import MOST_MEMBERS, BundleZip
from frx_graph.support.supervisor.process import unwind_on_termination

_TRACE_SUFFIXES: Final = (".json", ".json.gz")
_ROOT_TRACE: Final = PurePosixPath(bundle_layout.PROFILER_TRACE.name)
"""Folder of the trace in archives without folders."""
_ANALYSABLE: Final = frozenset(
    {bundle_layout.GPU_METRICS, bundle_layout.HOST_METRICS, bundle_layout.EVENTS, bundle_layout.SUMMARY, _ROOT_TRACE}
)
"""Files that each make a bundle. A run that was killed before it began has only samples."""
_FILES: Final = _ANALYSABLE | {bundle_layout.METADATA, bundle_layout.MANIFEST, bundle_layout.RUN_CONFIG}
"""Files of a bundle that are read, besides traces. The log is left out: it is for people."""
_DEEPEST = max(len(file.parts) for file in _ANALYSABLE)
"""Levels between a file and the bundle's folder."""
_NOTHING = "holds nothing to analyse: no events (raw/trace.jsonl), no trace (profiler/), no summary, no samples"


@dataclass(frozen=True, slots=True)
class OpenBundle:
    """An open bundle. `name` is the name of the run and its folder; `root` is the folder with the files."""

    name: str
    root: Path

    def find(self, relative: PurePosixPath) -> Path | None:
        """Return the file or folder at `relative` (see `bundle_layout`), or None. Raises `EvidenceError` for a link
        that leaves the bundle, and for anything but files and folders."""
        path = self.root / relative
        # A folder may contain anything: a device is endless, and a link may lead anywhere.
        try:
            real = Path(os.path.realpath(path, strict=True))
            mode = real.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            if path.is_symlink():
                raise EvidenceError(f"{path}: is a broken link") from None
            return None
        except OSError as error:
            raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from None
        if not real.is_relative_to(self.root):
            raise EvidenceError(f"{path}: links to a file outside the bundle", "copy the file into the bundle")
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise EvidenceError(f"{path}: is not a regular file")
        return real

    def get_relative_name(self, path: Path) -> str:
        """Return the name within the bundle of a path that `find` gave."""
        return path.relative_to(self.root).as_posix()

    def find_traces(self) -> tuple[Path, ...]:
        """Return the traces of torch.profiler, by name; `profiler_trace.json`, which has a special name, first.

        Raises `EvidenceError` as `find` does, and for too many traces.
        """
        found = [self.find(bundle_layout.PROFILER_TRACE), self.find(_ROOT_TRACE)]
        folder = self.find(bundle_layout.PROFILER)
        if folder is not None and folder.is_dir():
            names = sorted(path.name for path in folder.iterdir() if path.name.endswith(_TRACE_SUFFIXES))
            if len(names) > MOST_MEMBERS:
                raise EvidenceError(f"{folder}: holds more than {MOST_MEMBERS} traces")
            found += [self.find(bundle_layout.PROFILER / name) for name in names]
        return tuple(dict.fromkeys(path for path in found if path is not None and path.is_file()))


@contextlib.contextmanager
def open_bundle(path: Path) -> Iterator[OpenBundle]:
    """Open the bundle at `path`, a folder or a zip, while the block runs.

    In a zip the files are in one folder, its root or any other. Raises `EvidenceError` for a file that is not a bundle
    or could be harmful; nothing has been written then.
    """
    if path.is_dir():
        bundle = OpenBundle(path.resolve().name, path.resolve())
        if not _is_analysable(bundle):
            raise _explain_no_run(path)
        yield bundle
        return
    with (
        BundleZip(path) as archive,
        extract_bundle(archive, _find_prefix(path, archive.names), path, archive.names) as bundle,
    ):
        yield bundle


@contextlib.contextmanager
def extract_bundle(archive: BundleZip, prefix: PurePosixPath, path: Path, names: Sequence[str]) -> Iterator[OpenBundle]:
    """Extract the bundle in the folder `prefix` of an archive into a private folder while the block runs.

    `names` include its files, perhaps among others; `path` is the archive's path. Raises `EvidenceError` if extraction
    fails.
    """
    below = {name: PurePosixPath(name) for name in names if PurePosixPath(name).is_relative_to(prefix)}
    inside = {name: path.relative_to(prefix) for name, path in below.items()}
    wanted = {name: file for name, file in inside.items() if file in _FILES or _is_profile(file)}
    with unwind_on_termination(), tempfile.TemporaryDirectory(prefix="frx-bundle-") as folder:
        root = Path(folder).resolve()
        for name, file in wanted.items():
            target = root / file
            target.parent.mkdir(parents=True, exist_ok=True)
            archive.extract_member(name, target)
        yield OpenBundle(prefix.name or path.name.removesuffix(".zip"), root)


def _is_analysable(bundle: OpenBundle) -> bool:
    return any(bundle.find(file) for file in _ANALYSABLE) or bool(bundle.find_traces())


def _explain_no_run(folder: Path) -> EvidenceError:
    """Return the error for a folder without a run. It names the latest run if the folder holds runs."""
    with os.scandir(folder) as entries:
        below = [Path(entry.path) for entry in itertools.islice(entries, MOST_MEMBERS) if entry.is_dir()]
    runs = []
    for each in below:
        with contextlib.suppress(EvidenceError, OSError):
            if _is_analysable(OpenBundle(each.name, each.resolve())):
                runs.append((each.stat().st_mtime, each))
    if not runs:
        return EvidenceError(f"{folder}: {_NOTHING}")
    _, latest = max(runs)
    several = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    hint = f"name one of them, such as {latest}, the latest; frx fleet {shlex.quote(str(folder))} reads them all"
    return EvidenceError(f"{folder} holds {several}, and is not a run itself", hint)


def _find_prefix(path: Path, names: Sequence[str]) -> PurePosixPath:
    """Return the folder in the archive that holds the files for analysis, `.` for its root."""
    found = set()
    for name in map(PurePosixPath, names):
        for prefix in name.parents[:_DEEPEST]:
            inside = name.relative_to(prefix)
            if inside in _ANALYSABLE or _is_profile(inside):
                found.add(prefix)
    # The folder of traces looks like a run whose trace is at its root.
    outermost = {prefix for prefix in found if found.isdisjoint(prefix.parents)}
    if not outermost:
        raise EvidenceError(f"{path}: {_NOTHING}")
    if len(outermost) > 1:
        raise EvidenceError(f"{path}: holds {len(outermost)} runs", "unpack it, and analyse one at a time")
    return outermost.pop()


def _is_profile(inside: PurePosixPath) -> bool:
    return inside.parent == bundle_layout.PROFILER and inside.name.endswith(_TRACE_SUFFIXES)
