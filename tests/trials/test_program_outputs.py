"""When two outputs are the same, and how far from it they are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.trials.program_outputs import Agreement, compare_outputs


def test_the_same_bytes() -> None:
    assert compare_outputs(b"a\0\xff\n", b"a\0\xff\n").agreement is Agreement.IDENTICAL
    assert compare_outputs(b"", b"").agreement is Agreement.NOTHING_PRINTED


def test_numbers_that_are_near() -> None:
    found = compare_outputs(b"n 3 sum 1.000000 e -2.5e+3\n", b"n 3 sum 1.0000004 e -2500.001\n")
    assert found.agreement is Agreement.WITHIN_TOLERANCE
    assert (found.numbers, found.numbers_off) == (3, 0)
    assert found.largest_absolute == pytest.approx(1e-3)
    assert found.largest_relative == pytest.approx(4e-7)


def test_numbers_that_are_not_near() -> None:
    found = compare_outputs(b"sum 1.5\nsum 2.5\nsum 3.5\n", b"sum 1.5\nsum 2.6\nsum 3.5\n")
    assert found.agreement is Agreement.DIFFERENT
    assert (found.numbers, found.numbers_off, found.first_line) == (3, 1, 2)
    assert (found.before_line, found.after_line) == (b"sum 2.5\n", b"sum 2.6\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"count 10000000", b"count 10000001"),
        (b"ok", b"OK"),
        (b"1.0 2.0", b"1.0"),
        (b"", b"x"),
        (b"sum nan", b"sum 1.0"),
        (b"sum inf", b"sum 1e300"),
        (b"0xff1", b"0xff2"),
        (b"kernel_1", b"kernel_2"),
        (b"v1.2.3", b"v1.2.4"),
        (b"1e400", b"1.0"),
        (b"a\n", b"a"),
    ],
)
def test_differences_outside_every_tolerance(before: bytes, after: bytes) -> None:
    assert compare_outputs(before, after).agreement is Agreement.DIFFERENT
    assert compare_outputs(after, before).agreement is Agreement.DIFFERENT


def test_a_line_that_is_not_there() -> None:
    found = compare_outputs(b"a\nb\n", b"a\n")
    assert (found.first_line, found.before_line, found.after_line) == (2, b"b\n", None)


def test_numbers_out_of_range() -> None:
    found = compare_outputs(b"1e400 -1.7e308", b"1.0e400 1.7e308")
    assert found.numbers_off == 1
    assert found.largest_absolute == math.inf
    long = compare_outputs(b"9" * 10_000, b"8" * 10_000)
    assert long.agreement is Agreement.DIFFERENT


def test_megabyte_of_digits_that_is_not_a_number_is_compared_quickly() -> None:
    """It would be hours if each of its beginnings were tried."""
    found = compare_outputs(b"9" * 1_000_000 + b"x", b"9" * 1_000_000 + b"y")
    assert found.agreement is Agreement.DIFFERENT


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_anything_can_be_compared(before: bytes, after: bytes) -> None:
    found = compare_outputs(before, after)
    assert (found.agreement in (Agreement.IDENTICAL, Agreement.NOTHING_PRINTED)) is (before == after)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=8), st.data())
def test_one_number_off_is_found(values: list[float], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(values) - 1))
    others = [value * 1.01 + 1.0 if number == index else value for number, value in enumerate(values)]
    text = [" ".join(f"{value:.9e}" for value in side).encode() for side in (values, others)]
    expected = abs(others[index] - values[index]) > 1e-4 + 2e-6 * abs(values[index])
    assert not expected or compare_outputs(*text).numbers_off == 1
