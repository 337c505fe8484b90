"""Units of profilers: what they are called, and how much of the base unit they are."""

from __future__ import annotations

import pytest

from frx_graph.evidence.units import Unit, parse_unit


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", Unit("", 1.0)),
        ("%", Unit("%", 1.0)),
        ("ns", Unit("s", 1e-9)),
        ("nsecond", Unit("s", 1e-9)),
        ("us", Unit("s", 1e-6)),
        ("usecond", Unit("s", 1e-6)),
        ("msecond", Unit("s", 1e-3)),
        ("second", Unit("s", 1.0)),
        ("byte", Unit("byte", 1.0)),
        ("Kbyte", Unit("byte", 1e3)),
        ("Mbyte", Unit("byte", 1e6)),
        ("Gbyte/s", Unit("byte/s", 1e9)),
        ("Tbyte/second", Unit("byte/s", 1e12)),
        ("byte/block", Unit("byte/block", 1.0)),
        ("Kbyte/block", Unit("byte/block", 1e3)),
        ("Ghz", Unit("hz", 1e9)),
        ("cycle/nsecond", Unit("hz", 1e9)),
        ("cycle/usecond", Unit("hz", 1e6)),
        ("inst/cycle", Unit("inst/cycle", 1.0)),
        ("register/thread", Unit("register/thread", 1.0)),
        ("sector/request", Unit("sector/request", 1.0)),
    ],
)
def test_units_written_by_profilers_are_parsed(text: str, unit: Unit) -> None:
    found = parse_unit(text)
    assert found is not None
    assert found.name == unit.name
    assert found.factor == pytest.approx(unit.factor)


@pytest.mark.parametrize(
    "text", ["furlong", "Mpercent", "M%", "mbyte", "Ks", "byte/", "/s", "byte/s/s", "x" * 100, "Mib"]
)
def test_unknown_unit_is_none(text: str) -> None:
    assert parse_unit(text) is None
