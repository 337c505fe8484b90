"""What is put into a script, line by line."""

from __future__ import annotations

from frx_graph.reports.plain_text import lines

_GREEN, _RED, _CYAN, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[36m", "\x1b[0m"


def render_diff(difference: str, *, color: bool) -> str:
    """A unified diff as a terminal can show it: control characters of the script do not get there."""
    return "".join(f"{_colored(line) if color else line}\n" for line in lines(difference))


def _colored(line: str) -> str:
    shade = {"+": _GREEN, "-": _RED, "@": _CYAN}.get(line[:1])
    return line if shade is None or line.startswith(("+++", "---")) else f"{shade}{line}{_PLAIN}"
