"""Group files into runs by their names alone, in the same way for a folder, an archive and a remote store."""

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
# The shortest folder that fits is the run's: the traces' folder looks like a run with its trace at its root.
_FILE = re.compile(
    rf"(?:(?P<run>.+?)/)??(?:{'|'.join(re.escape(str(name)) for name in _NAMED)}"
    rf"|{re.escape(str(bundle_layout.PROFILER))}/[^/]+\.json(?:\.gz)?)",
    re.DOTALL,
)


def find_run(name: str) -> str | None:
    """Return the folder of the run that the relative `name` makes, "" for the root; None if it makes no run."""
    found = _FILE.fullmatch(name)
    return None if found is None else found["run"] or ""


def find_runs(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return folders that are runs, and archives that may hold runs, each in order. Files inside a run are neither."""
    runs, archives = set(), []
    for name in names:
        if (run := find_run(name)) is not None:
            runs.add(run)
        elif name.lower().endswith(".zip"):
            archives.append(name)
    loose = (name for name in archives if not any(folder in runs for folder in _iterate_parents(name)))
    return tuple(sorted(runs)), tuple(sorted(loose))


def group_files(runs: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """Return the files of each run: those in its folder, but not in another run below it."""
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
