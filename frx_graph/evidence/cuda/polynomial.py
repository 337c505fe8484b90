"""Integers as kernels compute them: polynomials over named values, with whole coefficients.

`row * width + threadIdx.x` is `{(row, width): 1, (threadIdx.x,): 1}`. What is no polynomial (a quotient, a
loaded value) is a symbol of its own, so that it can be added to and multiplied, and cancels where the program has it
twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MOST_TERMS = 48
"""Beyond that nothing is gained: an index has a handful. A polynomial that would have more is not kept."""
MOST_FACTORS = 8
MOST_COEFFICIENT = 1 << 64

Monomial = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Polynomial:
    """`terms` are sorted names to a coefficient that is not 0; the empty product is the constant."""

    terms: Mapping[Monomial, int]

    def __add__(self, other: Polynomial) -> Polynomial:
        return self._sum(other, 1)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self._sum(other, -1)

    def __mul__(self, other: Polynomial) -> Polynomial:
        """The product, of as many terms as both together have; see `fits`."""
        terms: dict[Monomial, int] = {}
        for left, by in self.terms.items():
            for right, times in other.terms.items():
                name = tuple(sorted(left + right))
                terms[name] = terms.get(name, 0) + by * times
        return Polynomial({name: value for name, value in terms.items() if value})

    def _sum(self, other: Polynomial, sign: int) -> Polynomial:
        terms = dict(self.terms)
        for name, value in other.terms.items():
            terms[name] = terms.get(name, 0) + sign * value
        return Polynomial({name: value for name, value in terms.items() if value})

    @property
    def constant(self) -> int | None:
        """Its value, if it is one number."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def fits(self) -> bool:
        """False of one that is too large to go on with."""
        return len(self.terms) <= MOST_TERMS and all(
            len(name) <= MOST_FACTORS and abs(value) < MOST_COEFFICIENT for name, value in self.terms.items()
        )

    def symbols(self) -> Iterator[str]:
        """Every name in it, some more than once."""
        for name in self.terms:
            yield from name

    def slope(self, symbol: str) -> Polynomial | None:
        """What it grows by with `symbol`, None where that depends on `symbol` itself."""
        terms: dict[Monomial, int] = {}
        for name, value in self.terms.items():
            times = name.count(symbol)
            if times > 1:
                return None
            if times == 1:
                at = name.index(symbol)
                terms[name[:at] + name[at + 1 :]] = value
        return Polynomial(terms)

    def __str__(self) -> str:
        """As C++ would have it, constants last: `4*width + threadIdx.x + 1`."""
        parts = []
        for name, value in sorted(self.terms.items(), key=lambda item: (not item[0], item[0])):
            factors = [] if value in (1, -1) and name else [str(abs(value))]
            parts.append(("- " if value < 0 else "+ ") + "*".join([*factors, *name]))
        said = " ".join(parts) or "0"
        return said.removeprefix("+ ") if said.startswith("+ ") else said.replace("- ", "-", 1)


ZERO = Polynomial({})


def number(value: int) -> Polynomial:
    """A constant."""
    return Polynomial({(): value} if value else {})


def named(symbol: str) -> Polynomial:
    """A symbol, once."""
    return Polynomial({(symbol,): 1})
