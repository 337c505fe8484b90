"""Names from models, traces and source files are hostile until they have been through here.

A kernel or module name may hold terminal escapes, line breaks, bidirectional overrides, halves of surrogate pairs, or a
megabyte of text. Every format that people read shows names through these functions and then applies its own escaping;
a ledger records reasons through them.
"""

from __future__ import annotations

import re
import unicodedata

NAME_LIMIT = 200
"""Characters of one name that a report shows: mangled C++ kernel names run to thousands."""

_ASCII_PRINTABLE = re.compile(r"[ -~]*\Z")
_BREAKS = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
_DROPPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
"""Controls, format characters (bidirectional overrides, zero widths), surrogates, private use, unassigned."""


def encodable(text: str) -> str:
    r"""`text` with lone surrogates written as `\udcxx`, so that it can be encoded as UTF-8; else unchanged."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def one_line(text: str, limit: int = NAME_LIMIT) -> str:
    """Printable characters only, on one line, at most `limit` of them; an ellipsis marks what was cut."""
    if not _ASCII_PRINTABLE.match(text):
        text = _BREAKS.sub(" ", text)
        text = "".join(c for c in text if unicodedata.category(c) not in _DROPPED_CATEGORIES)
    text = text.strip()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
