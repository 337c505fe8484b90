"""Operators on numbers: sums and products are polynomials, all else is a symbol that says what it was made of."""

from __future__ import annotations

from frx_graph.evidence.cuda.concrete import Made
from frx_graph.evidence.cuda.polynomial import MOST_TERMS, Polynomial, number
from frx_graph.evidence.cuda.values import ANYTHING, Symbols

_MOST_PRODUCTS = 10 * MOST_TERMS
"""Of terms, when two numbers are multiplied: so many do not cancel down to what can be gone on with."""


def arithmetic(symbols: Symbols, sign: str, one: Polynomial, other: Polynomial) -> Polynomial:
    """`one sign other`."""
    if sign == "+":
        return one + other
    if sign == "-":
        return one - other
    if sign == "*":
        if len(one.terms) * len(other.terms) > _MOST_PRODUCTS:
            return symbols.fresh("long", symbols.of(one) | symbols.of(other))
        return one * other
    by = other.constant
    if sign in ("/", "%"):
        return divided(symbols, sign, one, other)
    if sign == "<<" and by is not None and 0 <= by < 64:
        return one * number(1 << by)
    if sign == ">>" and by is not None and 0 <= by < 64:
        return divided(symbols, "/", one, number(1 << by))
    if sign == "&":
        mask = by if by is not None else one.constant
        value = one if by is not None else other
        # A mask of the lowest bits is a remainder.
        if mask is not None and mask > 0 and mask & (mask + 1) == 0:
            return divided(symbols, "%", value, number(mask + 1))
    if sign == "|" and by == 0:
        return one
    varies = symbols.of(one) | symbols.of(other)
    return symbols.made(f"({one} {sign} {other})", varies, remainder=sign == "&", of=Made(sign, one, other))


def divided(symbols: Symbols, sign: str, one: Polynomial, other: Polynomial) -> Polynomial:
    """`one / other` or `one % other`."""
    one_value, by = one.constant, other.constant
    if one_value is not None and by is not None and by > 0 and one_value >= 0:
        return number(one_value // by if sign == "/" else one_value % by)
    if by == 0 or not other.terms:
        return symbols.fresh("division", ANYTHING)
    quotient = symbols.quotient(one, other)
    return quotient if sign == "/" else one - other * quotient


def scaled(index: Polynomial, inner: tuple[Polynomial, ...]) -> Polynomial:
    """An index in elements: each step of it passes over all that the `inner` dimensions hold."""
    for size in inner:
        index = index * size
    return index
