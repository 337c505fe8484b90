"""Groups files into runs, by their names alone: the same for a folder, an archive and a remote store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from frx_graph.evidence.run import bundle_layout

_NAMED = (
    bundle_layout.EVENTS,
    bundle_layout.SUMMARY,
    bundle_layout.GPU_METRICS,
    bundle_layout.HOST_METRICS,
    bundle_layout.PROFILER_TRACE.name,
)
# The shortest folder that fits is the run's: that of the traces looks like a run with its trace at its root.
_FILE = re.compile(
    rf"(?:(?P<run>.+?)/)??(?:{'|'.join(re.escape(str(name)) for name in _NAMED)}"
    rf"|{re.escape(str(bundle_layout.PROFILER))}/[^/]+\.json(?:\.gz)?)",
    re.DOTALL,
)
_ZIP = ".zip"


def find_run(name: str) -> str | None:
    """The folder of the run that the file `name`, relative and with `/`, belongs to, "" for the root itself; None where
    it is none of those that make a run."""
    found = _FILE.fullmatch(name)
    return None if found is None else found["run"] or ""


def find_runs(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders that are runs, and archives that may hold some, each in order. What is inside a run is none of both."""
    runs, archives = set(), []
    for name in names:
        if (run := find_run(name)) is not None:
            runs.add(run)
        elif name.lower().endswith(_ZIP):
            archives.append(name)
    loose = (name for name in archives if not any(folder in runs for folder in _iterate_parents(name)))
    return tuple(sorted(runs)), tuple(sorted(loose))


def group_files(runs: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """The files of each run: what is in its folder, and in none of another run below it."""
    files: dict[str, list[str]] = {run: [] for run in runs}
    for name in names:
        owner = next((folder for folder in _iterate_parents(name) if folder in files), "")
        if owner in files:
            files[owner].append(name)
    return files


def _iterate_parents(name: str) -> Iterator[str]:
    folder = name
    while "/" in folder:
        folder = folder.rpartition("/")[0]
        yield folder
