"""Paths and longer texts of reports, made printable. Names go through `frx_graph.support.plain_text`."""

from __future__ import annotations

from frx_graph.support.plain_text import NAME_LIMIT, encodable, one_line

__all__ = ["NAME_LIMIT", "encodable", "lines", "one_line", "path_end"]


def path_end(path: str, limit: int) -> str:
    """As `one_line`, but of a path that is too long the end is kept: there stands the file's name."""
    path = one_line(path, len(path) + 1)
    return path if len(path) <= limit else f"…{path[1 - limit :]}"


def lines(text: str, limit: int = 4000) -> list[str]:
    """The printable lines of a longer text such as a fix, indentation kept, at most `limit` characters a line."""
    kept = []
    for line in text.replace("\t", "    ").splitlines():
        indent = line[: len(line) - len(line.lstrip(" "))]
        kept.append((indent + one_line(line, limit)).rstrip())
    return kept
