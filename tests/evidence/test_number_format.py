"""Numbers with points and commas: read rightly, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.evidence.number_format import (
    NumberFormat,
    detect_common_format,
    detect_format,
    is_missing,
    parse_number,
)

POINT, COMMA = NumberFormat.POINT, NumberFormat.COMMA


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("19.66", POINT),
        ("9,495.42", POINT),
        ("1,342,177,280", POINT),
        ("65,77", COMMA),
        ("9.495,42", COMMA),
        ("1 342 177 280", COMMA),
        ("0,123", COMMA),
        ("1,234", None),
        ("1.234", None),
        ("128", None),
        ("n/a", None),
        ("1,23,456", None),
        ("12.34.56", None),
        ("", None),
        ("9" * 200, None),
    ],
)
def test_number_format_is_detected(text: str, told: NumberFormat | None) -> None:
    assert detect_format(text) is told


def test_first_unambiguous_number_decides_the_format() -> None:
    assert detect_common_format(["1,234", "128", "65,77", "19.66"]) is COMMA
    assert detect_common_format(["1,234", "128"]) is POINT


@pytest.mark.parametrize(
    ("text", "written", "number"),
    [
        ("1,342,177,280", POINT, 1342177280.0),
        ("9,495.42", POINT, 9495.42),
        ("-3.5e-3", POINT, -0.0035),
        ("9.495,42", COMMA, 9495.42),
        ("65,77", COMMA, 65.77),
        ("1\u202f234,5", COMMA, 1234.5),
        ("1.234", COMMA, 1234.0),
        ("1.234", POINT, 1.234),
    ],
)
def test_numbers(text: str, written: NumberFormat, number: float) -> None:
    assert parse_number(text, written) == number


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("65,77", POINT),
        ("19.66", COMMA),
        ("1_000", POINT),
        ("0x10", POINT),
        ("nan", POINT),
        ("inf", COMMA),
        ("", POINT),
    ],
)
def test_non_number_in_this_format_is_refused(text: str, written: NumberFormat) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_number(text, written)


@pytest.mark.parametrize("text", ["n/a", "N/A", "nan", "-nan", "", "  ", "inf"])
def test_missing_value_markers_are_recognized(text: str) -> None:
    assert is_missing(text)


def test_zero_is_a_number() -> None:
    assert not is_missing("0")
    assert parse_number("0", POINT) == 0.0


@given(st.floats(min_value=-1e15, max_value=1e15).map(lambda value: round(value, 2)), st.sampled_from(NumberFormat))
def test_written_number_is_read_back(value: float, written: NumberFormat) -> None:
    text = f"{value:,.2f}"
    if written is COMMA:
        text = text.translate(str.maketrans(",.", ".,"))
    assert parse_number(text, written) == value


@pytest.mark.parametrize("text", ["1e309", "9" * 31, "-1e31", "1e-320", "-1e-31"])
def test_a_number_that_nothing_counts_to_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        parse_number(text, POINT)


@pytest.mark.parametrize("text", ["0", "0.000", "0e-320", "1e30", "-1e-30"])
def test_nothing_is_a_number_and_so_is_what_is_far_from_it(text: str) -> None:
    assert parse_number(text, POINT) == float(text)
