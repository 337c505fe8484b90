"""Check the target of a trial by its source, before any process loads it."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from frx_graph.errors import TargetError

_DEFINITION = re.compile(r"^(?:async\s+def|def|class)\s+(\w+)", re.MULTILINE)
_DYNAMIC = re.compile(r"import\s*\*|__getattr__|globals\(|locals\(|vars\(|setattr\(|exec\(")
"""Ways to define names that the source does not spell."""


def check_target(target: str) -> None:
    """Raise `TargetError` if the target has no name, its file does not exist, or its file never mentions that name.
    Modules are found when they are loaded, since importing one runs it."""
    location, _, name = target.rpartition(":")
    if not location or not name:
        raise TargetError(f"target {target!r} is not of the form module:callable", "e.g. frx trial model.py:build")
    if not location.endswith(".py"):
        return
    path = Path(location)
    if not path.is_file():
        raise TargetError(f"no such file: {location}", "give the path from the current folder")
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    if re.search(rf"\b{re.escape(name)}\b", source) or _DYNAMIC.search(source):
        return
    near = difflib.get_close_matches(name, _DEFINITION.findall(source), n=1)
    raise TargetError(f"{location} has no {name!r}", f"did you mean {near[0]!r}?" if near else "check the name")
