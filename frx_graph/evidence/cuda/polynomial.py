"""Integers as kernels compute them: polynomials over named values, with whole coefficients.

`row * width + threadIdx.x` is `{(row, width): 1, (threadIdx.x,): 1}`. Anything else (a quotient, a loaded value) is a
separate symbol, so that it can be added and multiplied, and cancels if the program has it twice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from frx_graph.evidence.record import record

MOST_TERMS = 48
"""Limit on terms: an index has a handful, and larger polynomials are dropped."""
MOST_FACTORS = 8
MOST_COEFFICIENT = 1 << 64

Monomial = tuple[str, ...]


@record
class Polynomial:
    """A sum of terms. `terms` map sorted names to a coefficient other than 0; the empty product is the constant."""

    terms: Mapping[Monomial, int]

    def __add__(self, other: Polynomial) -> Polynomial:
        return self._add_signed(other, 1)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self._add_signed(other, -1)

    def __mul__(self, other: Polynomial) -> Polynomial:
        """Return the product; its terms are at most those of both factors multiplied; see `fits`."""
        if len(other.terms) == 1:
            return self._multiply_term(*next(iter(other.terms.items())))
        if len(self.terms) == 1:
            return other._multiply_term(*next(iter(self.terms.items())))
        terms: dict[Monomial, int] = {}
        for left, by in self.terms.items():
            for right, times in other.terms.items():
                name = tuple(sorted(left + right))
                terms[name] = terms.get(name, 0) + by * times
        return Polynomial({name: value for name, value in terms.items() if value})

    def _multiply_term(self, name: Monomial, by: int) -> Polynomial:
        """Return the product with one term."""
        if not name:
            return self if by == 1 else Polynomial({own: by * value for own, value in self.terms.items()})
        return Polynomial({tuple(sorted(own + name)): by * value for own, value in self.terms.items()})

    def _add_signed(self, other: Polynomial, sign: int) -> Polynomial:
        if not other.terms:
            return self
        if not self.terms and sign == 1:
            return other
        terms = dict(self.terms)
        for name, value in other.terms.items():
            total = terms.get(name, 0) + sign * value
            if total:
                terms[name] = total
            else:
                del terms[name]
        return Polynomial(terms)

    @property
    def constant(self) -> int | None:
        """Return the value, if it is a single number."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def fits(self) -> bool:
        """Return False for a polynomial that is too large to process further."""
        return len(self.terms) <= MOST_TERMS and all(
            len(name) <= MOST_FACTORS and abs(value) < MOST_COEFFICIENT for name, value in self.terms.items()
        )

    def iterate_symbols(self) -> Iterator[str]:
        """Yield every name in it, some more than once."""
        for name in self.terms:
            yield from name

    def compute_slope(self, symbol: str) -> Polynomial | None:
        """Return the growth per step of `symbol`; None if that depends on `symbol` itself."""
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
        """Format it as in C++, constants last: `4*width + threadIdx.x + 1`."""
        parts = []
        for name, value in sorted(self.terms.items(), key=lambda item: (not item[0], item[0])):
            factors = [] if value in (1, -1) and name else [str(abs(value))]
            parts.append(("- " if value < 0 else "+ ") + "*".join([*factors, *name]))
        said = " ".join(parts) or "0"
        return said.removeprefix("+ ") if said.startswith("+ ") else said.replace("- ", "-", 1)


ZERO = Polynomial({})


@functools.lru_cache(maxsize=4096)
def make_constant(value: int) -> Polynomial:
    """A constant."""
    return Polynomial({(): value} if value else {})


@functools.lru_cache(maxsize=4096)
def make_symbol(symbol: str) -> Polynomial:
    """A symbol, once."""
    return Polynomial({(symbol,): 1})
