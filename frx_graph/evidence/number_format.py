"""Parse numbers as programs write them for people: 1,234.5 in English, 1.234,5 in half of Europe.

Numbers with only one reading decide which format a file uses; 1,234 alone does not.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

_EXPONENT = r"(?:[eE][-+]?\d{1,3})?"
_POINT = re.compile(rf"[-+]?(?:[1-9]\d{{0,2}}(?:,\d{{3}})+|\d+)(?:\.\d+)?{_EXPONENT}")
_COMMA = re.compile(rf"[-+]?(?:[1-9]\d{{0,2}}(?:[. \xa0\u202f]\d{{3}})+|\d+)(?:,\d+)?{_EXPONENT}")
_GROUPS_OF_COMMA = re.compile(r"[. \xa0\u202f]")
_MISSING = frozenset({"", "n/a", "nan", "-nan", "+nan", "inf", "-inf", "+inf", "-nan(ind)", "nan(ind)", "-", "none"})
_LONGEST = 64


MOST = 1e30
"""Larger than any count, and small enough that sums and products of such numbers are finite."""
LEAST = 1 / MOST
"""Smallest absolute value other than zero: quotients by it are finite."""
_is_plain = re.compile(r"-?\d{1,24}(?:\.\d{1,24})?").fullmatch
_is_grouped = re.compile(r"[1-9]\d{0,2}(?:,\d{3}){1,8}(?:\.\d{1,24})?").fullmatch


def is_measurable(number: float) -> bool:
    """Return True for zero, and for values between `LEAST` and `MOST`."""
    return number == 0 or LEAST <= abs(number) <= MOST


class NumberFormat(enum.StrEnum):
    """The sign between integer and fraction; the other one groups thousands."""

    POINT = "point"
    COMMA = "comma"


def detect_format(text: str) -> NumberFormat | None:
    """Return the only format in which `text` is a number; None if it is one in both, or in neither."""
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    point, comma = _POINT.fullmatch(text), _COMMA.fullmatch(text)
    if (point is None) is (comma is None):
        return None
    return NumberFormat.COMMA if point is None else NumberFormat.POINT


def detect_common_format(texts: Iterable[str]) -> NumberFormat:
    """Return the format of the first conclusive number; `POINT` without any."""
    return next((told for text in texts if (told := detect_format(text)) is not None), NumberFormat.POINT)


def is_missing(text: str) -> bool:
    """Return True for text that represents a missing number: `n/a`, `nan`, nothing."""
    return text.strip().lower() in _MISSING


def parse_number(text: str, written: NumberFormat) -> float:
    """Parse a number. Raises `ValueError` for text in another format, and for values beyond `MOST` or below `LEAST`."""
    # Nearly all numbers in a large file look like this.
    if written is NumberFormat.POINT:
        if _is_plain(text):
            return float(text)
        if _is_grouped(text):
            return float(text.replace(",", ""))
    text = text.strip()
    if len(text) <= _LONGEST:
        number = None
        if written is NumberFormat.POINT and _POINT.fullmatch(text):
            number = float(text.replace(",", ""))
        if written is NumberFormat.COMMA and _COMMA.fullmatch(text):
            number = float(_GROUPS_OF_COMMA.sub("", text).replace(",", "."))
        if number is not None and is_measurable(number):
            return number
    raise ValueError(text)
