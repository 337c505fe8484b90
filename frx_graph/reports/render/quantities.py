"""Format numbers of reports. An unknown number is "unknown", never 0."""

from __future__ import annotations

import math

from frx_graph.records import Candidate, Saving
from frx_graph.rules.predicted_gain import predict_gain
from frx_graph.support.plain_text import format_bytes, format_three_digits

UNKNOWN = "unknown"


def drop_non_finite(value: float | None) -> float | None:
    """Return `value`; None if it is None, NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def format_byte_count(count: int | None) -> str:
    """Return bytes in decimal units: `512 B`, `12.8 MB`."""
    return UNKNOWN if count is None else format_bytes(count)


def format_percent(value: float | None) -> str:
    """Return a percentage with one decimal. A share below a tenth of a percent is shown as such, not rounded to
    zero."""
    value = drop_non_finite(value)
    if value is None:
        return UNKNOWN
    return "<0.1 %" if 0.0 < value < 0.05 else f"{value:.1f} %"


def format_saving(expected: Saving) -> str:
    """Return the predicted saving, in percent of the step's memory traffic."""
    low, high = drop_non_finite(expected.predicted_pct_min), drop_non_finite(expected.predicted_pct_max)
    if low is None:
        if high is None:
            return UNKNOWN
        return format_percent(high) if format_percent(high).startswith("<") else f"up to {format_percent(high)}"
    if high is None:
        return f"at least {format_percent(low)}"
    if format_percent(low) == format_percent(high):
        return format_percent(high)
    return f"{format_percent(low).removesuffix(' %')}–{format_percent(high)}"


def format_prediction(candidate: Candidate) -> str:
    """Return what a candidate is predicted to save of a step, or only its class; empty if that is unknown."""
    gain = predict_gain(drop_non_finite(candidate.predicted_seconds), drop_non_finite(candidate.run_seconds))
    return "" if gain is None else str(gain)


def format_seconds(value: float | None) -> str:
    """Return a duration in a suitable unit: `1.24 s`, `12.4 ms`, `980 µs`."""
    value = drop_non_finite(value)
    if value is None:
        return UNKNOWN
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if value * scale >= 0.9995:
            return f"{format_three_digits(value * scale)} {unit}"
    return f"{format_three_digits(value * 1e6)} µs"


def format_rate(value: float | None, unit: str) -> str:
    """Return a rate with SI prefixes: `23.1 GB/s`, `1.20 TFLOP/s`."""
    value = drop_non_finite(value)
    if value is None:
        return UNKNOWN
    prefixes = ("", "k", "M", "G", "T", "P")
    index = 0
    while value >= 999.5 and index < len(prefixes) - 1:
        value, index = value / 1000.0, index + 1
    return f"{format_three_digits(value)} {prefixes[index]}{unit}"


def format_frequency(value: float, unit: str) -> str:
    """Return a rate: `0.0123 steps/s`, `8.45 steps/s`, `1,234 steps/s`."""
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def format_count(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun: `1 copy`, `3 copies`."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def format_share(share: float | None) -> str:
    """Return a share, 0..1, in percent."""
    return format_percent(None if share is None else 100 * share)


def format_ms(value: float | None) -> str:
    """Return a duration of so many milliseconds in a suitable unit."""
    return format_seconds(None if value is None else value / 1e3)


def format_quantity(value: float | None, unit: str) -> str:
    """Return a number with its unit: s, byte, byte/s, hz, % or empty."""
    match unit:
        case _ if value is None:
            return UNKNOWN
        case "%":
            return format_percent(value)
        case "s":
            return format_seconds(value)
        case "byte":
            return format_byte_count(round(value))
        case "byte/s":
            return format_rate(value, "B/s")
        case "hz":
            return format_rate(value, "Hz")
        case _:
            return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.4g}"
