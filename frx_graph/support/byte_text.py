"""How amounts of memory and of time are written, in findings and in reports alike."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def bytes_text(count: int) -> str:
    """Bytes in decimal units, three significant digits: `512 B`, `12.8 MB`."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000.0, unit + 1
    return f"{count} B" if unit == 0 else f"{three_digits(value)} {_UNITS[unit]}"


def three_digits(value: float) -> str:
    """Three significant digits without an exponent: 1.23, 12.3, 123."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def seconds_text(seconds: float) -> str:
    """`1.24 ms`, `35.0 us`."""
    if seconds >= 1.0:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} us"
