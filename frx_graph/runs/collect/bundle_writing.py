"""Make the folder of a run, in one step and as a complete bundle, and its zip."""

from __future__ import annotations

import os
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from frx_graph.errors import OptionError
from frx_graph.evidence.run import bundle_layout
from frx_graph.evidence.run.bundle_zip import MOST_BYTES, MOST_EXPANSION, MOST_MEMBERS, SMALLEST_EXPANDED
from frx_graph.reports.kernels.explain_prompt import FILES
from frx_graph.support.atomic_file import replace_on_success

FOLDERS: Final = (bundle_layout.EVENTS.parent, bundle_layout.SUMMARY.parent, bundle_layout.PROFILER)
_FIRST: Final = (
    bundle_layout.METADATA,
    bundle_layout.MANIFEST,
    bundle_layout.RUN_CONFIG,
    bundle_layout.GPU_METRICS,
    bundle_layout.HOST_METRICS,
    bundle_layout.LOGS,
    bundle_layout.EVENTS,
    bundle_layout.SUMMARY,
)
_CHUNK: Final = 1 << 20


def make_folder(folder: Path, texts: Mapping[PurePosixPath, bytes]) -> None:
    """Make a folder with these files and the folders of a bundle. Raises `OptionError` if it, or its zip, exists, and
    if it cannot be made."""
    for path in (folder, folder.with_name(f"{folder.name}.zip")):
        # An empty folder would be replaced by the one that is renamed.
        if os.path.lexists(path):
            raise OptionError(f"{path} exists already", "choose another --run-id, or leave it out")
    hidden = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        hidden.mkdir()
        try:
            for inside in FOLDERS:
                (hidden / inside).mkdir()
            for file, text in texts.items():
                (hidden / file).write_bytes(text)
            hidden.rename(folder)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
    except OSError as error:
        raise OptionError(f"{folder} cannot be made: {error.strerror or error}", "choose another --out") from None


def list_bundle_files(folder: Path) -> tuple[PurePosixPath, ...]:
    """Return the regular files of the bundle, in the order of listings. Other files of the workload are left out."""
    profiler = folder / bundle_layout.PROFILER
    # The workload may remove it.
    traces = sorted(path.name for path in profiler.iterdir()) if profiler.is_dir() else []
    possible = (
        *_FIRST,
        *(bundle_layout.PROFILER / name for name in traces if name.endswith((".json", ".json.gz"))),
        *map(PurePosixPath, FILES),
    )
    return tuple(file for file in possible if (folder / file).is_file() and not (folder / file).is_symlink())


def write_zip(archive: Path, folder: Path, files: Sequence[PurePosixPath]) -> None:
    """Put the files of the bundle into a zip, below the name of their folder, so that the zip opens as a bundle. Raises
    `OSError`, and leaves no partial zip."""
    if len(files) > MOST_MEMBERS:
        raise OSError(f"the bundle has more than {MOST_MEMBERS} files")
    if sum((folder / file).stat().st_size for file in files) > MOST_BYTES:
        raise OSError(f"its files have more than {MOST_BYTES >> 30} GiB")
    with replace_on_success(archive) as temporary, zipfile.ZipFile(temporary, "w", strict_timestamps=False) as made:
        for file in files:
            path = folder / file
            method = zipfile.ZIP_STORED if _is_stored_plain(path) else zipfile.ZIP_DEFLATED
            made.write(path, f"{folder.name}/{file}", compress_type=method)


def _is_stored_plain(path: Path) -> bool:
    """Return True if the zip stores the file uncompressed. It is compressed already, or so repetitive that the zip
    would look like a bomb."""
    if path.suffix == ".gz":
        return True
    size = path.stat().st_size
    if size < SMALLEST_EXPANDED:
        return False
    # The fastest compression is not half as good as the usual one; the factor is to be sure.
    compressor = zlib.compressobj(1)
    with path.open("rb") as file:
        chunks = iter(lambda: file.read(_CHUNK), b"")
        small = sum(len(compressor.compress(chunk)) for chunk in chunks) + len(compressor.flush())
    return size > MOST_EXPANSION / 5 * small
