"""Compare the outputs of two programs: byte for byte, else number by number."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass
from itertools import zip_longest

RELATIVE, ABSOLUTE = 1.3e-6, 1e-5
"""Relative and absolute tolerance of a number: the default of `torch.testing.assert_close` for float32. A number
without point and exponent is a count, and must be equal."""
_NUMBER = re.compile(rb"(?<![\w.])[+-]?(?:\d++\.?\d*+|\.\d++)(?:[eE][+-]?\d++)?(?![\w.])")
"""A number, but no digits of a name, a version, or a hexadecimal number. The quantifiers are possessive, since a
megabyte of digits before a letter would otherwise be tried at every length."""
_COUNT = re.compile(rb"[+-]?\d+")
_SHOWN_BYTES = 200


class Agreement(enum.StrEnum):
    """The relation of two outputs."""

    IDENTICAL = "identical"
    WITHIN_TOLERANCE = "within_tolerance"
    """The text is the same except for numbers, which are all within the tolerance."""
    DIFFERENT = "different"
    NOTHING_PRINTED = "nothing_printed"
    """Neither program printed anything, so they were not shown to do the same."""


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """Two outputs. Fields about numbers are None if numbers were not compared one by one."""

    agreement: Agreement
    numbers: int | None = None
    """Numbers at the same places of the same text."""
    numbers_off: int | None = None
    largest_absolute: float | None = None
    largest_relative: float | None = None
    """Relative to the greater of the two; infinite if one of them is too great for a float."""
    first_line: int | None = None
    """Counted from 1, where the outputs first differ."""
    before_line: bytes | None = None
    """The beginning of that line; None if there is none any more."""
    after_line: bytes | None = None


def compare_outputs(before: bytes, after: bytes) -> OutputComparison:
    """Compare two outputs."""
    if before == after:
        return OutputComparison(Agreement.IDENTICAL if before else Agreement.NOTHING_PRINTED)
    lines = zip_longest(before.splitlines(keepends=True), after.splitlines(keepends=True))
    line, first, second = next((n, one, other) for n, (one, other) in enumerate(lines, start=1) if one != other)
    first, second = first and first[:_SHOWN_BYTES], second and second[:_SHOWN_BYTES]
    if _NUMBER.sub(b"0", before) != _NUMBER.sub(b"0", after):
        return OutputComparison(Agreement.DIFFERENT, first_line=line, before_line=first, after_line=second)
    numbers = off = 0
    absolute = relative = 0.0
    for one, other in zip(_NUMBER.finditer(before), _NUMBER.finditer(after), strict=True):
        numbers += 1
        if one[0] == other[0]:
            continue
        distance, share = _compute_distance(float(one[0]), float(other[0]))
        absolute, relative = max(absolute, distance), max(relative, share)
        off += not _is_close(one[0], other[0], distance)
    return OutputComparison(
        Agreement.DIFFERENT if off else Agreement.WITHIN_TOLERANCE,
        numbers=numbers,
        numbers_off=off,
        largest_absolute=absolute,
        largest_relative=relative,
        first_line=line,
        before_line=first,
        after_line=second,
    )


def _compute_distance(one: float, other: float) -> tuple[float, float]:
    """Return the absolute distance, and its share of the greater; infinite if either is."""
    if math.isinf(one) or math.isinf(other):
        return (0.0, 0.0) if one == other else (math.inf, math.inf)
    distance = abs(one - other)
    return distance, distance / max(abs(one), abs(other)) if distance else 0.0


def _is_close(one: bytes, other: bytes, distance: float) -> bool:
    if _COUNT.fullmatch(one) and _COUNT.fullmatch(other):
        return False
    return math.isfinite(distance) and distance <= ABSOLUTE + RELATIVE * abs(float(one))
