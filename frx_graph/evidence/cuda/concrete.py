"""Evaluate numbers and tests for given threads, if their places and the iterations of loops decide them.

This covers expressions that no polynomial describes: quotients, remainders and bits. Threads are evaluated together, so
that shared parts, most of an index, are computed once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import repeat
from typing import TypeVar

from frx_graph.evidence.cuda.polynomial import Polynomial
from frx_graph.evidence.record import record

_DEEPEST = 20
"""Limit on symbols made of symbols; an index has two or three."""
_MOST = 1 << 62
"""Values beyond this overflow an index."""
_LONGEST_SHIFT = 64

Worth = int | None | tuple[int | None, ...]
"""One value for all threads, or one for each if they differ; None if unknown."""
Truth = bool | None | tuple[bool | None, ...]
_A = TypeVar("_A")
_B = TypeVar("_B")

OPPOSITE: Mapping[str, str] = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


@record
class Test:
    """`difference sign 0`."""

    sign: str
    difference: Polynomial


@record
class TestGroup:
    """All (`&&`) or any (`||`) of these tests."""

    all: bool
    tests: tuple[Test | TestGroup, ...]


def iterate_tests(tests: Test | TestGroup) -> Iterator[Test]:
    """Yield each test of a group."""
    if isinstance(tests, Test):
        yield tests
    else:
        for one in tests.tests:
            yield from iterate_tests(one)


@record
class SymbolOperation:
    """The operation behind a symbol: `one sign other`, a quotient or an operation on bits."""

    sign: str
    one: Polynomial
    other: Polynomial


@record
class SymbolChoice:
    """The choice behind a symbol: `one` if the tests hold, else `other`."""

    tests: Test | TestGroup
    one: Polynomial
    other: Polynomial


@record
class LoopValues:
    """Values of a symbol that a loop changes, in its first and its second iteration. None if unknown."""

    first: Polynomial
    next: Polynomial | None


@dataclass(slots=True)
class Threads:
    """Threads with known values. `place` has the known values, such as `threadIdx.x`. `late` are the loops in their
    second iteration, such as `loop:12`; all others are in their first. `given` returns the value of any other
    symbol, None if unknown."""

    place: Mapping[str, Worth]
    made: Mapping[str, SymbolOperation | SymbolChoice]
    turns: Mapping[str, LoopValues]
    late: frozenset[str]
    given: Callable[[str], int | None]
    _known: dict[str, Worth] = field(init=False)
    _depth: int = 0

    def __post_init__(self) -> None:
        self._known = dict(self.place)

    def evaluate(self, value: Polynomial) -> Worth:
        """Return the value of a polynomial; None if a symbol in it is unknown."""
        total: Worth = 0
        for name, times in value.terms.items():
            product: Worth = times
            for symbol in name:
                factor = self._evaluate_symbol(symbol)
                known = _is_known(product, factor)
                product = _map_threads(operator.mul if known else _multiply_known, product, factor)
            total = _map_threads(operator.add if _is_known(total, product) else _add_known, total, product)
        if isinstance(total, tuple):
            return tuple([one if one is not None and -_MOST < one < _MOST else None for one in total])
        return total if total is not None and -_MOST < total < _MOST else None

    def check(self, tests: Test | TestGroup) -> Truth:
        """Return the value of a symbol; None if unknown."""
        if isinstance(tests, Test):
            return _map_threads(_SIGNS[tests.sign], self.evaluate(tests.difference), 0)
        return reduce(apply_and if tests.all else apply_or, map(self.check, tests.tests))

    def _evaluate_symbol(self, symbol: str) -> Worth:
        if symbol not in self._known:
            self._known[symbol] = None
            if self._depth < _DEEPEST:
                self._depth += 1
                self._known[symbol] = self._compute_symbol(symbol)
                self._depth -= 1
        return self._known[symbol]

    def _compute_symbol(self, symbol: str) -> Worth:
        made = self.made.get(symbol)
        if isinstance(made, SymbolChoice):
            return _select_threads(self.check(made.tests), self.evaluate(made.one), self.evaluate(made.other))
        if made is not None:
            if made.sign not in _OPERATIONS:
                return None
            return _map_threads(_OPERATIONS[made.sign], self.evaluate(made.one), self.evaluate(made.other))
        if not symbol.startswith("loop:"):
            return self.given(symbol)
        loop = ":".join(symbol.split(":", 2)[:2])
        if symbol == loop:
            return int(loop in self.late)
        turns = self.turns.get(symbol)
        if turns is None:
            return None
        first = self.evaluate(turns.first)
        if loop not in self.late:
            return first
        if turns.next is None:
            return None
        before = Threads({**self.place, symbol: first}, self.made, self.turns, self.late - {loop}, self.given)
        before._depth = self._depth
        return _map_threads(lambda one, later: None if one is None else later, first, before.evaluate(turns.next))


def apply_or(one: Truth, other: Truth) -> Truth:
    """Return `one || other` for each thread."""
    return _map_threads(_apply_or, one, other)


def apply_and(one: Truth, other: Truth) -> Truth:
    """Return `one && other` for each thread."""
    return _map_threads(_apply_and, one, other)


def expand_threads(found: _A | tuple[_A, ...], count: int) -> Sequence[_A]:
    """Return one entry for each of `count` threads."""
    return found if isinstance(found, tuple) else (found,) * count


def _map_threads(
    operation: Callable[[_A, _A], _B], one: _A | tuple[_A, ...], other: _A | tuple[_A, ...]
) -> _B | tuple[_B, ...]:
    if isinstance(one, tuple):
        return tuple(map(operation, one, other if isinstance(other, tuple) else repeat(other)))
    return tuple(map(operation, repeat(one), other)) if isinstance(other, tuple) else operation(one, other)


def _is_known(one: Worth, other: Worth) -> bool:
    """Return True if nothing is None. Such sums and products take a third of the time."""
    return all(None not in worth if isinstance(worth, tuple) else worth is not None for worth in (one, other))


def _add_known(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _multiply_known(one: int | None, other: int | None) -> int | None:
    if one == 0 or other == 0:
        return 0
    return None if one is None or other is None else one * other


def _select_threads(holds: Truth, one: Worth, other: Worth) -> Worth:
    """Return `holds ? one : other` for each thread."""
    count = next((len(part) for part in (holds, one, other) if isinstance(part, tuple)), None)
    if count is None:
        assert not isinstance(holds, tuple)
        return other if holds is False else one if holds or one == other else None
    columns = expand_threads(holds, count), expand_threads(one, count), expand_threads(other, count)
    return tuple(b if goes is False else a if goes or a == b else None for goes, a, b in zip(*columns, strict=True))


def _apply_and(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _apply_or(one: bool | None, other: bool | None) -> bool | None:
    if one or other:
        return True
    return None if one is None or other is None else False


def _compare_known(compare: Callable[[int, int], bool]) -> Callable[[int | None, int | None], bool | None]:
    return lambda one, zero: None if one is None or zero is None else compare(one, zero)


def _lift_naturals(operation: Callable[[int, int], int | None]) -> Callable[[int | None, int | None], int | None]:
    """Divide as C++ does, for numbers that are not negative."""
    return lambda one, other: None if one is None or other is None or one < 0 or other < 0 else operation(one, other)


_OPERATIONS: Mapping[str, Callable[[int | None, int | None], int | None]] = {
    "/": _lift_naturals(lambda one, other: one // other if other else None),
    "&": _lift_naturals(operator.and_),
    "|": _lift_naturals(operator.or_),
    "^": _lift_naturals(operator.xor),
    "<<": _lift_naturals(lambda one, other: one << other if other < _LONGEST_SHIFT else None),
    ">>": _lift_naturals(lambda one, other: one >> other if other < _LONGEST_SHIFT else None),
}
_SIGNS: Mapping[str, Callable[[int | None, int | None], bool | None]] = {
    "<": _compare_known(operator.lt),
    ">": _compare_known(operator.gt),
    "<=": _compare_known(operator.le),
    ">=": _compare_known(operator.ge),
    "==": _compare_known(operator.eq),
    "!=": _compare_known(operator.ne),
}
