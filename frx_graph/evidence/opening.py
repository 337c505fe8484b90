"""Open evidence files from users, and turn their faults into an `EvidenceError`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from frx_graph.errors import EvidenceError

GZIP_MAGIC = b"\x1f\x8b"
FOREIGN_FORMATS = MappingProxyType(
    {
        b"PK\x03\x04": "a zip archive",
        b"\x28\xb5\x2f\xfd": "a zstd file",
        b"BZh": "a bzip2 file",
        b"\xfd7zXZ": "an xz file",
        b"SQLite format 3": "an SQLite database, which Nsight Systems exports",
    }
)
"""First bytes of files that users pass to readers of JSON and text, which refuse them. Errors name the format."""


@contextlib.contextmanager
def open_evidence(path: Path, expected: str, hint: str = "") -> Iterator[BinaryIO]:
    """Open the file at `path`, and turn system errors, including read errors, into `EvidenceError`.

    `expected` names the kind of file in errors. Raises `EvidenceError` for anything but a regular file.
    """
    # Opening a fifo waits for a writer that may never come.
    if path.exists() and not path.is_file() and not path.is_dir():
        raise EvidenceError(f"{path}: is not a regular file, expected {expected}", hint)
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise EvidenceError(f"{path}: no such file", hint) from None
    except IsADirectoryError:
        raise EvidenceError(f"{path}: is a directory, expected {expected}", hint) from None
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error.strerror or error}") from None
