"""Copy the traces of a workload's profiler into the run's bundle."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from frx_graph.evidence.run import bundle_layout
from frx_graph.reports.render.quantities import format_count
from frx_graph.support.atomic_file import replace_on_success

MOST_IMPORTED: Final = 1 << 30
"""Bytes of all traces together: half of what a zip of the bundle may expand to."""
MOST_TRACES: Final = 64
"""One trace for each profiled process and window."""
_CLOCK_SECONDS: Final = 2.0
"""Seconds that a file's time may precede the actual write: FAT rounds to them."""
_DEPTH: Final = 3
"""Folders that are searched below an artifact folder: handlers of profilers make one for each run or host."""
_TRACE = re.compile(r".*trace.*\.json(\.gz)?", re.IGNORECASE | re.DOTALL)
"""`profiler_trace.json`, and `HOST_PID.TIME.pt.trace.json.gz`, as `torch.profiler.tensorboard_trace_handler` names
them."""
_ODD = re.compile(r"[^\w.+-]", re.ASCII)


def import_traces(
    folders: Sequence[Path], bundle: Path, since: float
) -> tuple[dict[PurePosixPath, Path], tuple[str, ...]]:
    """Copy the traces in `folders` that were written after `since` (seconds since the epoch) into the bundle.

    Return the sources of the copied files by their paths in the bundle, and a warning for each that was not copied.
    Older traces belong to another run.
    """
    imported: dict[PurePosixPath, Path] = {}
    warnings: list[str] = []
    room = MOST_IMPORTED
    stale = 0
    for found in (file for folder in folders for file in _find_traces(folder, bundle)):
        try:
            state = found.stat(follow_symlinks=False)
            if not stat.S_ISREG(state.st_mode):
                continue
            if state.st_mtime < since - _CLOCK_SECONDS:
                stale += 1
                continue
            if state.st_size > room or len(imported) == MOST_TRACES:
                raise OSError(f"more than {MOST_TRACES} traces, or {MOST_IMPORTED >> 30} GiB")
            target = _find_free_name(bundle / bundle_layout.PROFILER / _sanitize_name(found.name))
            _copy(found, target, state.st_size)
        except OSError as error:
            warnings.append(f"{found} is not imported: {error.strerror or error}")
        else:
            room -= state.st_size
            imported[PurePosixPath(target.relative_to(bundle))] = found
    if stale:
        warnings.append(f"{format_count(stale, 'older trace')} not imported: written before the run")
    return imported, tuple(warnings)


def gather_traces(bundle: Path) -> tuple[str, ...]:
    """Move traces that the workload wrote into the bundle to the bundle's folder for traces, under names that a zip
    allows. Return warnings."""
    warnings = []
    profiler = bundle / bundle_layout.PROFILER
    beside = [path for path in bundle.iterdir() if _TRACE.fullmatch(path.name)]
    # The workload may have removed the folder.
    inside = profiler.iterdir() if profiler.is_dir() else ()
    # A zip has neither unprintable names nor backslashes.
    odd = [path for path in inside if not path.name.isprintable() or "\\" in path.name]
    for path in sorted((*beside, *odd)):
        try:
            if stat.S_ISREG(path.lstat().st_mode):
                profiler.mkdir(exist_ok=True)
                path.rename(_find_free_name(profiler / _sanitize_name(path.name)))
        except OSError as error:
            warnings.append(f"{path} is not in the bundle: {error.strerror or error}")
    return tuple(warnings)


def _sanitize_name(name: str) -> str:
    return _ODD.sub("_", name)[-200:]


def _find_traces(folder: Path, bundle: Path) -> Iterator[Path]:
    """Yield the traces in a folder by name. Links are not followed, and the bundle is left out."""
    for place, folders, names in os.walk(folder):
        here = Path(place)
        depth = len(here.relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if depth < _DEPTH and (here / name).resolve() != bundle.resolve())
        yield from (here / name for name in sorted(names) if _TRACE.fullmatch(name))


def _find_free_name(target: Path) -> Path:
    stem, dot, suffix = target.name.partition(".")
    number = 2
    while os.path.lexists(target):
        target = target.with_name(f"{stem}-{number}{dot}{suffix}")
        number += 1
    return target


def _copy(source: Path, target: Path, size: int) -> None:
    """Copy a trace of `size` bytes. Raises `OSError` also if it has grown since."""
    with replace_on_success(target) as copy:
        shutil.copyfile(source, copy, follow_symlinks=False)
        if copy.stat(follow_symlinks=False).st_size > size:
            raise OSError("another process still writes to it")
    with contextlib.suppress(OSError):
        shutil.copystat(source, target, follow_symlinks=False)
