"""Format numbers of reports. An unknown number reads "unknown", never 0."""

from __future__ import annotations

import math

from frx_graph.records import Saving
from frx_graph.support.plain_text import bytes_text, three_digits

UNKNOWN = "unknown"


def finite(value: float | None) -> float | None:
    """`value`, or None where it is None, NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def byte_count(count: int | None) -> str:
    """Bytes in decimal units: `512 B`, `12.8 MB`."""
    return UNKNOWN if count is None else bytes_text(count)


def percent(value: float | None) -> str:
    """A share with one decimal; below a tenth of a percent says so instead of rounding to nothing."""
    value = finite(value)
    if value is None:
        return UNKNOWN
    return "<0.1 %" if 0.0 < value < 0.05 else f"{value:.1f} %"


def predicted(expected: Saving) -> str:
    """The predicted saving, in percent of the step's memory traffic."""
    low, high = finite(expected.predicted_pct_min), finite(expected.predicted_pct_max)
    if low is None:
        if high is None:
            return UNKNOWN
        return percent(high) if percent(high).startswith("<") else f"up to {percent(high)}"
    if high is None:
        return f"at least {percent(low)}"
    if percent(low) == percent(high):
        return percent(high)
    return f"{percent(low).removesuffix(' %')}–{percent(high)}"


def seconds(value: float | None) -> str:
    """A duration with the unit that suits it: `1.24 s`, `12.4 ms`, `980 µs`."""
    value = finite(value)
    if value is None:
        return UNKNOWN
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * scale >= 0.9995 or unit == "µs":
            return f"{three_digits(value * scale)} {unit}"
    raise AssertionError("the loop ends at µs")


def rate(value: float | None, unit: str) -> str:
    """A rate in SI prefixes: `23.1 GB/s`, `1.20 TFLOP/s`."""
    value = finite(value)
    if value is None:
        return UNKNOWN
    prefixes = ("", "k", "M", "G", "T", "P")
    index = 0
    while value >= 999.5 and index < len(prefixes) - 1:
        value, index = value / 1000.0, index + 1
    return f"{three_digits(value)} {prefixes[index]}{unit}"


def per_second(value: float, unit: str) -> str:
    """Return a rate: `0.0123 steps/s`, `8.45 steps/s`, `1,234 steps/s`."""
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """`1 copy`, `3 copies`."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def share_percent(share: float | None) -> str:
    """Return a share, 0..1, in percent."""
    return percent(None if share is None else 100 * share)


def milliseconds(value: float | None) -> str:
    """Return a duration of so many milliseconds with the unit that suits it."""
    return seconds(None if value is None else value / 1e3)


def quantity(value: float | None, unit: str) -> str:
    """Return a number with its unit, one of s, byte, byte/s, hz and %, or empty."""
    match unit:
        case _ if value is None:
            return UNKNOWN
        case "%":
            return percent(value)
        case "s":
            return seconds(value)
        case "byte":
            return byte_count(round(value))
        case "byte/s":
            return rate(value, "B/s")
        case "hz":
            return rate(value, "Hz")
        case _:
            return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.4g}"
