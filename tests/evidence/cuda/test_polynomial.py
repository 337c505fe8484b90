"""Polynomials compute as whole numbers do."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frx_graph.evidence.cuda.polynomial import ZERO, Polynomial, make_constant, make_symbol

NAMES = st.sampled_from(["a", "b", "x"])
ATOMS = st.integers(-5, 5).map(make_constant) | NAMES.map(make_symbol)
VALUES = st.fixed_dictionaries({name: st.integers(-9, 9) for name in "abx"})


def worth(polynomial: Polynomial, values: dict[str, int]) -> int:
    total = 0
    for name, times in polynomial.terms.items():
        for symbol in name:
            times *= values[symbol]
        total += times
    return total


POLYNOMIALS = st.recursive(
    ATOMS,
    lambda inner: st.tuples(inner, inner, st.sampled_from([operator.add, operator.sub, operator.mul])).map(
        lambda drawn: drawn[2](drawn[0], drawn[1])
    ),
    max_leaves=6,
)


@given(POLYNOMIALS, POLYNOMIALS, VALUES)
def test_sums_and_products(one: Polynomial, other: Polynomial, values: dict[str, int]) -> None:
    assert worth(one + other, values) == worth(one, values) + worth(other, values)
    assert worth(one - other, values) == worth(one, values) - worth(other, values)
    assert worth(one * other, values) == worth(one, values) * worth(other, values)
    assert one - one == ZERO
    assert 0 not in (one * other).terms.values()


@given(POLYNOMIALS, VALUES)
def test_slope_is_the_difference_for_one_more_step(polynomial: Polynomial, values: dict[str, int]) -> None:
    slope = polynomial.compute_slope("x")
    if slope is None:
        assert any(name.count("x") > 1 for name in polynomial.terms)
        return
    more = {**values, "x": values["x"] + 1}
    assert worth(slope, values) == worth(polynomial, more) - worth(polynomial, values)


@pytest.mark.parametrize(
    ("polynomial", "text", "constant"),
    [
        (ZERO, "0", 0),
        (make_constant(-3), "-3", -3),
        (make_symbol("n") * make_symbol("y") - make_symbol("x") + make_constant(1), "n*y - x + 1", None),
        (ZERO - make_constant(2) * make_symbol("x"), "-2*x", None),
    ],
)
def test_texts(polynomial: Polynomial, text: str, constant: int | None) -> None:
    assert (str(polynomial), polynomial.constant) == (text, constant)
