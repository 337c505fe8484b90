"""Read the lines of an untrusted text file: decoded, numbered, and limited in length."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from frx_graph.errors import EvidenceError
from frx_graph.evidence.opening import FOREIGN_FORMATS, GZIP_MAGIC, open_evidence

LONGEST_LINE = 1 << 20
"""Limit in characters. A kernel's name with all its template arguments takes a thousand."""
_SNIFFED_BYTES = 4096
_BINARY = {
    **FOREIGN_FORMATS,
    GZIP_MAGIC: "a gzip file",
    b"\x7fELF": "a compiled program",
    b"%PDF": "a PDF document",
    b"\x89PNG": "a picture",
}


class TextLines:
    """Iterates over lines with their ends; `number` is the last line's number, from 1. Raises `EvidenceError`."""

    def __init__(self, path: Path, stream: IO[str], longest: int) -> None:
        self.number = 0
        self._path = path
        self._stream = stream
        self._longest = longest

    def __iter__(self) -> Iterator[str]:
        readline, longest = self._stream.readline, self._longest
        while line := readline(longest + 1):
            self.number += 1
            if len(line) > longest:
                raise EvidenceError(f"{self._path}: line {self.number}: longer than {longest:,} characters")
            if "\0" in line:
                raise EvidenceError(f"{self._path}: line {self.number}: a NUL character, expected text")
            yield line

    def read_rest(self) -> str:
        """Return all unread text in one piece, which may be no longer than a line."""
        # Reading all of it decodes all of it at once, in a third of the time.
        fits = os.fstat(self._stream.fileno()).st_size <= self._longest
        text = self._stream.read() if fits else self._stream.read(self._longest + 1)
        if len(text) > self._longest:
            raise EvidenceError(f"{self._path}: longer than {self._longest:,} characters")
        if "\0" in text:
            number = self.number + text.count("\n", 0, text.index("\0")) + 1
            raise EvidenceError(f"{self._path}: line {number}: a NUL character, expected text")
        return text


@contextlib.contextmanager
def open_text_lines(path: Path, expected: str, *, longest: int = LONGEST_LINE) -> Iterator[TextLines]:
    """Open the lines of the file at `path`: UTF-8 with or without a byte order mark, or UTF-16. `expected` describes
    the file in errors. Raises `EvidenceError` for another file, also while it is read."""
    with open_evidence(path, expected) as raw:
        start = raw.read(_SNIFFED_BYTES)
        raw.seek(0)
        encoding = _detect_encoding(path, start, expected)
        with io.TextIOWrapper(raw, encoding=encoding, errors="replace", newline="") as stream:
            yield TextLines(path, stream, longest)


def read_whole_text(path: Path, expected: str, *, longest: int) -> str:
    """Return the text from `open_text_lines`, limited to `longest` characters."""
    with open_text_lines(path, expected, longest=longest) as lines:
        return lines.read_rest()


def _detect_encoding(path: Path, start: bytes, expected: str) -> str:
    if not start.strip():
        raise EvidenceError(f"{path}: is empty, expected {expected}")
    for magic, name in _BINARY.items():
        if start.startswith(magic):
            raise EvidenceError(f"{path}: is {name}, expected {expected}")
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Windows shells write UTF-16, some without a mark: every other byte of ASCII text is 0 then.
    if len(start) >= 4 and start[1::2].count(0) > 0.9 * len(start[1::2]):
        return "utf-16-le"
    if len(start) >= 4 and start[::2].count(0) > 0.9 * len(start[::2]):
        return "utf-16-be"
    if b"\0" in start:
        raise EvidenceError(f"{path}: is a binary file, expected {expected}")
    return "utf-8-sig"
