"""Writes a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace the file at `path` by one that holds `text`, so that a reader sees the old one or the new one.

    Its mode is what the umask leaves of 0666. What is no regular file (`/dev/stdout`, a pipe) is written to as it is; a
    link stays, and the file behind it is replaced. Raises `OSError`, with no file left behind, where that cannot be
    done.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_text(text, encoding="utf-8")
        return
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
