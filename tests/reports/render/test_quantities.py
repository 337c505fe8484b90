from __future__ import annotations

import pytest

from frx_graph.records import Saving
from frx_graph.reports.render import quantities

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (12_845_056, "12.8 MB"),
        (10**21, "1000000 PB"),
    ],
)
def test_byte_count(count, shown):
    assert quantities.format_byte_count(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "unknown"), (NAN, "unknown"), (INF, "unknown"), (0.0, "0.0 %"), (0.04, "<0.1 %"),
                         (0.05, "0.1 %"), (14.78, "14.8 %")],
)  # fmt: skip
def test_percent(value, shown):
    assert quantities.format_percent(value) == shown


@pytest.mark.parametrize(
    ("expected", "shown"),
    [
        (Saving(), "unknown"),
        (Saving(6.1, 8.04), "6.1–8.0 %"),
        (Saving(8.01, 8.04), "8.0 %"),
        (Saving(0.01, 2.0), "<0.1–2.0 %"),
        (Saving(None, 0.02), "<0.1 %"),
        (Saving(None, 3.0), "up to 3.0 %"),
        (Saving(3.0, None), "at least 3.0 %"),
        (Saving(1.0, 9.0, 4.0), "1.0–9.0 %"),
        (Saving(NAN, INF, NAN), "unknown"),
    ],
)
def test_predicted(expected, shown):
    assert quantities.format_saving(expected) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "unknown"), (1.24, "1.24 s"), (0.0124, "12.4 ms"), (98e-6, "98.0 µs"), (0.0, "0.00 µs")]
)
def test_seconds(value, shown):
    assert quantities.format_seconds(value) == shown


def test_rate():
    assert quantities.format_rate(23.1e9, "B/s") == "23.1 GB/s"
    assert quantities.format_rate(None, "B/s") == "unknown"
    assert quantities.format_rate(5.0, "FLOP/s") == "5.00 FLOP/s"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.01234, "0.0123 steps/s"), (8.45, "8.45 steps/s"), (1510.4, "1,510 steps/s")]
)
def test_per_second(value, shown):
    assert quantities.format_frequency(value, "steps/s") == shown


def test_plural():
    assert quantities.format_count(1, "copy", "copies") == "1 copy"
    assert quantities.format_count(1200, "copy", "copies") == "1,200 copies"
