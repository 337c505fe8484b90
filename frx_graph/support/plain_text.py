"""Make names, amounts of memory and times printable in findings and reports.

A kernel or module name from a model, trace or source file may hold terminal escapes, line breaks, bidirectional
overrides, lone surrogates, or a megabyte of text. Every format that people read passes names through `clean_line`, and
then applies its own escaping.
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


def escape_surrogates(text: str) -> str:
    r"""Return `text` with lone surrogates written as `\udcxx`, so that it can be encoded as UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def clean_line(text: str, limit: int = NAME_LIMIT) -> str:
    """Return the printable characters of `text` on one line, at most `limit`; an ellipsis marks a cut."""
    if not _ASCII_PRINTABLE.match(text):
        text = _BREAKS.sub(" ", text)
        text = "".join(c for c in text if unicodedata.category(c) not in _DROPPED_CATEGORIES)
    text = text.strip()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_bytes(count: int) -> str:
    """Format bytes in decimal units, with three significant digits: `512 B`, `12.8 MB`."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000.0, unit + 1
    return f"{count} B" if unit == 0 else f"{format_three_digits(value)} {_UNITS[unit]}"


def format_three_digits(value: float) -> str:
    """Format with three significant digits, without an exponent: 1.23, 12.3, 123."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def format_seconds(seconds: float) -> str:
    """Format a time: `1.24 ms`, `35.0 us`."""
    if seconds >= 1.0:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} us"
