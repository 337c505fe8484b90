"""How amounts of memory are written, in findings and in reports alike."""

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
