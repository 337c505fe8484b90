"""What is put into a script, line by line."""

from __future__ import annotations

import difflib

from frx_graph.reports.render.plain_text import lines

_GREEN, _RED, _CYAN, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[36m", "\x1b[0m"
_NO_NEWLINE = "\n\\ No newline at end of file\n"


def difference(name: str, before: str, after: str) -> str:
    """A unified diff that `patch -p0` takes. Lines end where it ends them: at line feeds, and nowhere else, while
    `str.splitlines` breaks them at form feeds, too."""
    changes = difflib.unified_diff(_lines(before), _lines(after), name, name)
    return "".join(line if line.endswith("\n") else line + _NO_NEWLINE for line in changes)


def _lines(text: str) -> list[str]:
    *ended, last = text.split("\n")
    return [f"{line}\n" for line in ended] + ([last] if last else [])


def render_diff(changes: str, *, color: bool) -> str:
    """A unified diff as a terminal can show it: control characters of the script do not get there."""
    shown = (" ".join(lines(line)) for line in changes.split("\n")[:-1])
    return "".join(f"{_colored(line) if color else line}\n" for line in shown)


def _colored(line: str) -> str:
    shade = {"+": _GREEN, "-": _RED, "@": _CYAN}.get(line[:1])
    return line if shade is None or line.startswith(("+++", "---")) else f"{shade}{line}{_PLAIN}"
