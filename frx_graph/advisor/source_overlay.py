"""Import changed source in place of files, which stay as they are."""

from __future__ import annotations

import importlib
import linecache
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any


def overlay_sources(files: Mapping[str, str]) -> None:
    """Make this process read another file wherever Python imports one of `files`, from now on.

    The module keeps the path of the original, so that it finds its data and its neighbours. No compiled code is read or
    written for it. `inspect` and tracebacks show the changed lines.
    """
    changed = {}
    for file, other in files.items():
        # The interpreter may know the file by a path with links.
        changed[file] = changed[str(Path(file).resolve())] = Path(other).read_bytes()
    get_data, get_stats = SourceFileLoader.get_data, SourceFileLoader.path_stats

    def read(loader: SourceFileLoader, path: Any) -> bytes:
        data = changed.get(str(path))
        return get_data(loader, path) if data is None else data

    def stat(loader: SourceFileLoader, path: Any) -> Mapping[str, Any]:
        if str(path) in changed:
            # Then the import system neither looks for compiled code nor writes it.
            raise OSError(f"{path} is overlaid")
        return get_stats(loader, path)

    SourceFileLoader.get_data, SourceFileLoader.path_stats = read, stat  # type: ignore[method-assign, assignment]
    importlib.invalidate_caches()
    for path, data in changed.items():
        text = data.decode("utf-8-sig")
        # Without a time the cache does not compare it with the file.
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
