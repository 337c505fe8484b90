"""Write files atomically."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replace the file at `path` by one with `text`: a reader sees either the old file or the new one.

    Its mode is 0666 less the umask. `/dev/stdout`, a pipe and the like are written to directly. A link stays, and its
    target is replaced. Raises `OSError`, and leaves no file behind, if that fails.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_text(text, encoding="utf-8")
        return
    with replace_on_success(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replace_on_success(path: Path) -> Iterator[Path]:
    """Yield an empty file beside `path`, which replaces the one at `path` at the end of the block.

    A link stays, and its target is replaced. If the block raises, nothing changes.
    """
    path = Path(os.path.realpath(path))
    temporary = _make_temporary_path(path)
    try:
        temporary.open("x").close()
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_all_atomically(texts: Mapping[Path, str]) -> None:
    """Write several regular files, all of them or none.

    Raises `OSError`, with the old files in place. If the machine fails in between, some files are new and some old, and
    each is whole.
    """
    with contextlib.ExitStack() as leftovers, contextlib.ExitStack() as undo:
        written = []
        for given, text in texts.items():
            path = Path(os.path.realpath(given))
            temporary = _make_temporary_path(path)
            leftovers.callback(temporary.unlink, missing_ok=True)
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text)
            written.append((temporary, path))
        for temporary, path in written:
            if path.exists():
                kept = _make_temporary_path(path)
                leftovers.callback(kept.unlink, missing_ok=True)
                shutil.copy2(path, kept)
                undo.callback(kept.replace, path)
            else:
                undo.callback(path.unlink, missing_ok=True)
            temporary.replace(path)
        undo.pop_all()


def _make_temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")
