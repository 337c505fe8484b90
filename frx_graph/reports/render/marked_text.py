"""Parse texts of rules and findings: prose with code in backquotes, and indented lines of code."""

from __future__ import annotations

import re
from dataclasses import dataclass

from frx_graph.support.plain_text import clean_line

_CODE = re.compile(r"`([^`]+)`")
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Run:
    """A piece of a line: prose or marked code."""

    text: str
    code: bool


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One line of prose."""

    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Indented lines, without their common indentation."""

    lines: tuple[str, ...]


def split_runs(line: str) -> tuple[Run, ...]:
    """Return the pieces of one line. A backquote without a partner is prose."""
    pieces = []
    position = 0
    for match in _CODE.finditer(line):
        pieces += [Run(line[position : match.start()], code=False), Run(match[1], code=True)]
        position = match.end()
    pieces.append(Run(line[position:], code=False))
    return tuple(piece for piece in pieces if piece.text)


def split_blocks(text: str) -> tuple[Paragraph | CodeBlock, ...]:
    """Return the printable paragraphs and code blocks of a text."""
    found: list[Paragraph | CodeBlock] = []
    code: list[str] = []
    for line in [*split_lines(text), ""]:
        if line.startswith(_INDENT):
            code.append(line.removeprefix(_INDENT))
            continue
        if code:
            found.append(CodeBlock(tuple(code)))
            code = []
        if line.strip():
            found.append(Paragraph(split_runs(line.strip())))
    return tuple(found)


def split_lines(text: str, limit: int = 4000) -> list[str]:
    """Return the printable lines of a longer text such as a fix, with indentation, at most `limit` characters per
    line."""
    kept = []
    for line in text.replace("\t", "    ").splitlines():
        indent = line[: len(line) - len(line.lstrip(" "))]
        kept.append((indent + clean_line(line, limit)).rstrip())
    return kept
