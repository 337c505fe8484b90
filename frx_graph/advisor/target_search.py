"""Find the targets that `frx advise` is to look at: as they are typed, or the build functions in a folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from frx_graph.errors import OptionError, TargetError

_NAME = "build"
_MOST_FILES = 2000
_LONGEST_FILE = 4 << 20
_HINT = 'name a target, model.py:build, or write targets = ["model.py:build"] in [tool.frx]'


def find_targets(typed: Sequence[str]) -> list[str]:
    """Return each target once, in order. A folder stands for the functions `build` and `build_...` in its Python files,
    if they can be called without arguments. Raises `OptionError` for none, and `TargetError` for a folder without."""
    found: dict[str, None] = {}
    for one in typed:
        if Path(one).is_dir():
            inside = list(_list_targets(Path(one)))
            if not inside:
                raise TargetError(f"{one}: no function `build` or `build_...` in its Python files", _HINT)
            found.update(dict.fromkeys(inside))
        else:
            found[one] = None
    if not found:
        raise OptionError("no target", _HINT)
    return list(found)


def _list_targets(folder: Path) -> Iterator[str]:
    files = sorted(path for path in folder.rglob("*.py") if not _is_hidden(path.relative_to(folder)))
    if len(files) > _MOST_FILES:
        raise TargetError(f"{folder}: more than {_MOST_FILES:,} Python files", "name a folder with models")
    for path in files:
        for function in _list_functions(path):
            yield f"{path}:{function}"


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _list_functions(path: Path) -> Iterator[str]:
    """Yield the build functions of a file, which is parsed and not imported. A file with errors has none."""
    try:
        if path.stat().st_size > _LONGEST_FILE:
            return
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (node.name == _NAME or node.name.startswith(f"{_NAME}_")):
            given = node.args
            positional = len(given.posonlyargs) + len(given.args)
            keywords = sum(one is None for one in given.kw_defaults)
            if positional == len(given.defaults) and not keywords:
                yield node.name
