"""Writes files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
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
    with replaced_when_written(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replaced_when_written(path: Path) -> Iterator[Path]:
    """An empty file beside `path`, for somebody to write, that replaces the one at `path` at the end of the block; a
    link stays, and the file behind it is replaced. Where the block raises, or `OSError` is raised, nothing has changed.
    """
    path = Path(os.path.realpath(path))
    temporary = _beside(path)
    try:
        temporary.open("x").close()
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_all_atomically(texts: Mapping[Path, str]) -> None:
    """As `write_atomically`, of several regular files: all of them, or none. Raises `OSError` with those that were
    there before as they were. A machine that fails in between leaves new files beside old ones, each of them whole."""
    with contextlib.ExitStack() as leftovers, contextlib.ExitStack() as undo:
        written = []
        for given, text in texts.items():
            path = Path(os.path.realpath(given))
            temporary = _beside(path)
            leftovers.callback(temporary.unlink, missing_ok=True)
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text)
            written.append((temporary, path))
        for temporary, path in written:
            if path.exists():
                kept = _beside(path)
                leftovers.callback(kept.unlink, missing_ok=True)
                shutil.copy2(path, kept)
                undo.callback(kept.replace, path)
            else:
                undo.callback(path.unlink, missing_ok=True)
            temporary.replace(path)
        undo.pop_all()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")
