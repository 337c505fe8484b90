"""What a value is worth to one thread, and whether a test holds for it, where nothing but its place and the turns of
loops decide: of what no polynomial tells, quotients, remainders and bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from frx_graph.evidence.cuda.polynomial import Polynomial
from frx_graph.evidence.cuda.record import record

_DEEPEST = 20
"""Symbols that are made of symbols; an index has two or three."""
_MOST = 1 << 62
"""Beyond that an index overflows."""

OPPOSITE: Mapping[str, str] = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}


@record
class Test:
    """`difference sign 0`."""

    sign: str
    difference: Polynomial


@record
class Several:
    """All (`&&`) or any (`||`) of them."""

    all: bool
    tests: tuple[Test | Several, ...]


@record
class Made:
    """What a symbol is short for: `one sign other`, a quotient or an operation on bits."""

    sign: str
    one: Polynomial
    other: Polynomial


@record
class Turns:
    """What a symbol that a loop changes is worth in its first turn, and in the next by what it was in the last; None
    where that is not known."""

    first: Polynomial
    next: Polynomial | None


@dataclass(slots=True)
class Thread:
    """`place` is what is known of it, as `threadIdx.x`; `late` are the loops, as `loop:12`, that are in their second
    turn, all others being in their first; `given` tells what any other symbol is worth, None if that is not known."""

    place: Mapping[str, int]
    made: Mapping[str, Made]
    turns: Mapping[str, Turns]
    late: frozenset[str]
    given: Callable[[str], int | None]
    _known: dict[str, int | None] = field(init=False)
    _depth: int = 0

    def __post_init__(self) -> None:
        self._known = dict(self.place)

    def worth(self, value: Polynomial) -> int | None:
        """None where something in it is not known."""
        total = 0
        for name, times in value.terms.items():
            product: int | None = times
            for symbol in name:
                one = self._symbol(symbol)
                if one == 0:
                    product = 0
                    break
                product = None if one is None or product is None else product * one
            if product is None:
                return None
            total += product
        return total if -_MOST < total < _MOST else None

    def holds(self, tests: Test | Several) -> bool | None:
        """None where that is not known."""
        if isinstance(tests, Test):
            value = self.worth(tests.difference)
            return None if value is None else _SIGNS[tests.sign](value)
        found = [self.holds(one) for one in tests.tests]
        decides = not tests.all
        if decides in found:
            return decides
        return None if None in found else tests.all

    def goes(self, tests: Sequence[Test | Several]) -> bool:
        """False if one of the tests keeps it away; what is not known does not."""
        return not any(self.holds(one) is False for one in tests)

    def _symbol(self, symbol: str) -> int | None:
        if symbol not in self._known:
            self._known[symbol] = None
            if self._depth < _DEEPEST:
                self._depth += 1
                self._known[symbol] = self._found(symbol)
                self._depth -= 1
        return self._known[symbol]

    def _found(self, symbol: str) -> int | None:
        made = self.made.get(symbol)
        if made is not None:
            one, other = self.worth(made.one), self.worth(made.other)
            return None if one is None or other is None else _computed(made.sign, one, other)
        if not symbol.startswith("loop:"):
            return self.given(symbol)
        loop = ":".join(symbol.split(":", 2)[:2])
        if symbol == loop:
            return int(loop in self.late)
        turns = self.turns.get(symbol)
        first = None if turns is None else self.worth(turns.first)
        if turns is None or first is None or loop not in self.late:
            return first
        if turns.next is None:
            return None
        before = Thread({**self.place, symbol: first}, self.made, self.turns, self.late - {loop}, self.given)
        before._depth = self._depth
        return before.worth(turns.next)


def _computed(sign: str, one: int, other: int) -> int | None:
    """As C++ does, of numbers that are not negative."""
    if one < 0 or other < 0:
        return None
    if sign == "/":
        return one // other if other else None
    if sign in ("<<", ">>") and other >= 64:
        return None
    operation = _OPERATIONS.get(sign)
    return None if operation is None else operation(one, other)


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "&": lambda one, other: one & other,
    "|": lambda one, other: one | other,
    "^": lambda one, other: one ^ other,
    "<<": lambda one, other: one << other,
    ">>": lambda one, other: one >> other,
}
_SIGNS: Mapping[str, Callable[[int], bool]] = {
    "<": lambda value: value < 0,
    ">": lambda value: value > 0,
    "<=": lambda value: value <= 0,
    ">=": lambda value: value >= 0,
    "==": lambda value: value == 0,
    "!=": lambda value: value != 0,
}
