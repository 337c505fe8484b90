"""Quote the source of a kernel, with line numbers, at a readable length."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from frx_graph.errors import EvidenceError
from frx_graph.evidence.text_lines import open_text_lines

MOST_LINES = 400
MOST_CHARACTERS = 40_000
"""About ten thousand tokens: enough for a kernel and its callees, but not a library."""
LARGEST = 8_000_000
"""Limit on the characters searched for the kernel."""
_LONGEST_LINE = 1 << 16
_BEFORE = 20
"""Lines before a kernel: its comment, its template parameters."""
_EXPECTED = "CUDA source"
_KERNEL = "__global__"
_LONGEST_HEAD = 500
"""Limit on the characters between that word and a kernel's parameters."""
_NAME = re.compile(r"(?:[^;{}()]|__launch_bounds__\s*\([^()]*\))*?\b(?!__launch_bounds__)(\w+)\s*\(")


@dataclass(frozen=True, slots=True)
class QuotedSource:
    """Quoted `lines` of the file, without line ends; the first has the number `first`, the file `total` lines."""

    path: str
    first: int
    lines: tuple[str, ...]
    total: int


def quote_source(path: Path, kernels: Sequence[str] = ()) -> QuotedSource:
    """Read a quotable part of the file at `path`: from shortly before the first of the `kernels`, or else from its
    beginning. Raises `EvidenceError` if the file is not text, or is too large for source."""
    lines: list[str] = []
    size = 0
    with open_text_lines(path, _EXPECTED, longest=_LONGEST_LINE) as read:
        for line in read:
            size += len(line)
            if size > LARGEST:
                raise EvidenceError(f"{path}: larger than {LARGEST:,} characters, expected {_EXPECTED}")
            lines.append(line.rstrip("\r\n"))
    start = 0
    if len(lines) > MOST_LINES or size > MOST_CHARACTERS:
        start = max(0, _find_line(lines, kernels) - _BEFORE)
    kept: list[str] = []
    left = MOST_CHARACTERS
    for line in lines[start : start + MOST_LINES]:
        left -= len(line)
        if left < 0:
            break
        kept.append(line)
    return QuotedSource(str(path), start + 1, tuple(kept), len(lines))


def _find_line(lines: Sequence[str], kernels: Sequence[str]) -> int:
    """Return the index of the line that defines the first of these kernels; 0 without one."""
    text = "\n".join(lines)
    defined = tuple(_find_definitions(text))
    for kernel in kernels:
        # A demangled name has it as a word; a mangled one after its length.
        words = frozenset(re.findall(r"\w+", kernel.partition("(")[0]))
        for name, position in defined:
            if name in words or f"{len(name)}{name}" in kernel:
                return text.count("\n", 0, position)
    return 0


def _find_definitions(text: str) -> Iterator[tuple[str, int]]:
    """Yield each kernel's name, and the place where it is defined or declared."""
    places = [found.span() for found in re.finditer(_KERNEL, text)]
    for (position, begin), (following, _) in zip_longest(places, places[1:], fillvalue=(len(text), len(text))):
        if found := _NAME.match(text[begin : min(following, begin + _LONGEST_HEAD)]):
            yield found[1], position
