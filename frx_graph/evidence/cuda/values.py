"""Values of names while a kernel is read: numbers, pointers, cooperative groups.

A number is a polynomial over symbols. Each symbol records its dependencies: `x`, `y`, `z` for `threadIdx`, `block` for
`blockIdx`, `lane` (it differs within a warp), `data` (it was loaded, or is unknown). Threads of a warp are assumed to
be neighbours in x, as in blocks of a multiple of 32 threads in x.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from frx_graph.evidence.cuda.concrete import LoopValues, SymbolChoice, SymbolOperation, Test, TestGroup
from frx_graph.evidence.cuda.polynomial import MOST_TERMS, ZERO, Polynomial, make_constant, make_symbol
from frx_graph.evidence.cuda.source import Space, Stride, StrideKind
from frx_graph.evidence.record import record

WARP = 32
_LONGEST_NAME = 2_000
"""Limit in characters: each operator other than sum and product doubles them, and the longest in real kernels has a
third."""
_MADE = re.compile(r"loop:\d+:\*?(?=[A-Za-z_])|#\d+")
"""Separates symbols with the same name in the source."""
THREAD_X = "threadIdx.x"
_OF_BLOCKS = ("blockDim.x", "blockIdx.")
Varies = frozenset[str]
UNIFORM: Varies = frozenset()
INDEX_OBJECTS = frozenset(["threadIdx", "blockIdx", "blockDim", "gridDim"])
_PLACE = frozenset(["x", "y", "z", "block"])
ANYTHING: Varies = frozenset({"x", "y", "z", "block", "lane", "data"})
BUILT_IN: Mapping[str, Varies] = {
    THREAD_X: frozenset({"x", "lane"}),
    "threadIdx.y": frozenset({"y"}),
    "threadIdx.z": frozenset({"z"}),
    **{f"blockIdx.{axis}": frozenset({"block"}) for axis in "xyz"},
    **{f"{size}.{axis}": UNIFORM for size in ("blockDim", "gridDim") for axis in "xyz"},
}


@record
class Base:
    """An array, or the target of a parameter."""

    name: str
    space: Space
    volatile: bool = False


@record
class Pointer:
    """An address: `offset` elements of `element` after the start of `base`. `inner` are the sizes of the dimensions not
    yet indexed, except the outermost."""

    base: Base
    offset: Polynomial
    element: str
    inner: tuple[Polynomial, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A cooperative group: `kind` is block, tile, grid or other; `size` is the number of threads in a tile, None if it
    is not a number."""

    kind: str
    size: int | None = None


Value = Polynomial | Pointer | Group


def get_offset(value: Value) -> Polynomial:
    """Return a number, or the offset of a pointer; 0 for a group."""
    return value if isinstance(value, Polynomial) else value.offset if isinstance(value, Pointer) else ZERO


@dataclass(slots=True)
class Symbols:
    """The symbols of one kernel and their dependencies. `loaded` maps those read from memory to the read's index."""

    varies: dict[str, Varies] = field(default_factory=lambda: dict(BUILT_IN))
    loaded: dict[str, int] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    """Symbols that a launch passes: parameters of the kernel."""
    remainders: set[str] = field(default_factory=set)
    """Symbols that are quotients, or single bits."""
    parts: dict[str, SymbolOperation | SymbolChoice] = field(default_factory=dict)
    """Operations behind symbols."""
    turns: dict[str, LoopValues] = field(default_factory=dict)
    """Values of symbols that a loop changes."""
    _made: int = 0
    _across: dict[int, tuple[Polynomial, tuple[Varies, Stride]]] = field(default_factory=dict)
    """Caches by identity of the offset, which is held so that no other object has it."""

    def get_varies(self, value: Value) -> Varies:
        """Return the dependencies of a value; a pointer counts as its offset."""
        return UNIFORM.union(*(self.varies[symbol] for symbol in get_offset(value).iterate_symbols()))

    def create_symbol(self, hint: str, varies: Varies) -> Polynomial:
        """Make a new symbol."""
        self._made += 1
        name = f"{hint}#{self._made}"
        self.varies[name] = varies
        return Polynomial({(name,): 1})

    def create_loop_symbol(self, hint: str, varies: Varies, first: Polynomial) -> Polynomial:
        """Make a new symbol for a value that a loop changes; `first` is its value in the first iteration."""
        value = self.create_symbol(hint, varies)
        self.turns[next(value.iterate_symbols())] = LoopValues(first, None)
        return value

    def note_next_value(self, head: Value, value: Value) -> None:
        """Record the value of such a symbol when the iteration ends."""
        for symbol in head.iterate_symbols() if isinstance(head, Polynomial) else ():
            if isinstance(value, Polynomial) and symbol in self.turns and head == make_symbol(symbol):
                self.turns[symbol] = replace(self.turns[symbol], next=value)

    def limit_size(self, value: Polynomial) -> Polynomial:
        """Return the value, or a symbol if it is too large to process further."""
        return value if value.fits else self.create_symbol("long", self.get_varies(value))

    def get_symbol(self, name: str, varies: Varies, *, remainder: bool = False) -> Polynomial:
        """Return the symbol of this name, creating it if necessary."""
        self.varies.setdefault(name, varies)
        if remainder:
            self.remainders.add(name)
        return make_symbol(name)

    def get_derived_symbol(
        self, name: str, varies: Varies, *, remainder: bool = False, of: SymbolOperation | None = None
    ) -> Polynomial:
        """Return the symbol for an operation, shared by equal operations elsewhere. If the name is too long, the symbol
        is a new one."""
        if len(name) > _LONGEST_NAME:
            return self.create_symbol("long", varies)
        if of is not None:
            self.parts[name] = of
        return self.get_symbol(name, varies, remainder=remainder)

    def compute_lane_slope(self, value: Polynomial) -> Polynomial | None:
        """Return the growth from a thread to the next one in a warp; None if unknown."""
        differs = (symbol != THREAD_X and "lane" in self.varies[symbol] for symbol in value.iterate_symbols())
        return None if any(differs) else value.compute_slope(THREAD_X)

    def divide(self, value: Polynomial, by: Polynomial) -> Polynomial:
        """Return `value / by` as a symbol that equal quotients elsewhere share."""
        divisor = by.constant
        if divisor is not None and divisor != 0:
            if all(times % divisor == 0 for times in value.terms.values()):
                return Polynomial({name: times // divisor for name, times in value.terms.items()})
            if divisor == 1:
                return value
        varies = self.get_varies(value) | self.get_varies(by)
        slope = self.compute_lane_slope(value)
        if _is_uniform_in_warp(value, slope, divisor) or (slope == ZERO and "lane" not in self.get_varies(by)):
            varies -= {"lane"}
        # Divided by whole warps, or by a parameter, it may be the same throughout a warp.
        turns = any(symbol.startswith("loop:") for symbol in by.iterate_symbols())
        remainder = turns if divisor is None else divisor % WARP != 0
        return self.get_derived_symbol(
            f"{_enclose(value)}/{_enclose(by)}", varies, remainder=remainder, of=SymbolOperation("/", value, by)
        )

    def describe_offset(self, offset: Polynomial) -> tuple[Varies, Stride]:
        """Return the dependencies of an offset, and its stride. Several arrays often share one offset."""
        known = self._across.get(id(offset))
        if known is None:
            known = self._across[id(offset)] = offset, (self.get_varies(offset), self.compute_stride(offset))
        return known[1]

    def compute_stride(self, offset: Polynomial) -> Stride:
        """Return the distance between neighbouring threads."""
        slope = self.compute_lane_slope(offset)
        if slope is None:
            return Stride(StrideKind.UNKNOWN, None, None)
        constant = slope.constant
        if constant is None:
            # A difference of symbols may be anything, including 1 or 0.
            if any(times < 0 for times in slope.terms.values()):
                return Stride(StrideKind.UNKNOWN, None, None)
            return Stride(StrideKind.SYMBOLIC, None, _MADE.sub("", str(slope)), math.gcd(*slope.terms.values()))
        if constant == 0:
            return Stride(StrideKind.BROADCAST, 0, "0")
        kind = StrideKind.COALESCED if abs(constant) == 1 else StrideKind.STRIDED
        return Stride(kind, constant, str(constant), abs(constant))

    def join_values(self, one: Value, other: Value, decides: Varies, tests: Test | TestGroup | None = None) -> Value:
        """Return either of two values; the choice depends on `decides`. If `tests` are known, it is the first where
        they hold."""
        if one == other:
            return one
        if isinstance(one, Pointer) and isinstance(other, Pointer) and one.base == other.base:
            if one.element == other.element and one.inner == other.inner:
                offset = self.join_values(one.offset, other.offset, decides, tests)
                assert isinstance(offset, Polynomial)
                return replace(one, offset=offset)
            return make_unknown_pointer(one.element)
        if not isinstance(one, Polynomial) or not isinstance(other, Polynomial):
            return self.create_symbol("either", ANYTHING)
        varies = self.get_varies(one) | self.get_varies(other) | decides
        slope = self.compute_lane_slope(one)
        same = slope is not None and slope == self.compute_lane_slope(other)
        if slope is not None and same and decides.isdisjoint({"lane", "data"}):
            # Threads of a warp have it the same way, whichever it is.
            along = slope * make_symbol(THREAD_X)
            return along + self._create_choice(one - along, other - along, varies - {"lane"}, tests)
        return self._create_choice(one, other, varies | {"lane"} if varies & {"x", "data"} else varies, tests)

    def _create_choice(
        self, one: Polynomial, other: Polynomial, varies: Varies, tests: Test | TestGroup | None, hint: str = "either"
    ) -> Polynomial:
        found = self.create_symbol(hint, varies)
        if tests is not None:
            ((symbol,),) = found.terms
            self.parts[symbol] = SymbolChoice(tests, one, other)
        return found

    def create_truth(self, tests: Test | TestGroup, varies: Varies) -> Polynomial:
        """Return 1 where the tests hold, 0 elsewhere. Parts that the data decide are unknown."""
        return self._create_choice(make_constant(1), ZERO, varies, tests, "truth")

    def create_minimum(self, hint: str, difference: Polynomial, one: Polynomial, other: Polynomial) -> Polynomial:
        """Return `one` where the difference is negative, `other` elsewhere."""
        varies = self.get_varies(one) | self.get_varies(other)
        return self._create_choice(one, other, varies, self.filter_tests(Test("<", difference), varies), hint)

    def filter_tests(self, tests: Test | TestGroup, varies: Varies) -> Test | TestGroup | None:
        """Return tests that one thread can evaluate; those that only the launch or the data decide are unknown."""
        return tests if "data" not in varies and varies & _PLACE else None


def _enclose(value: Polynomial) -> str:
    text = str(value)
    return text if text.replace(".", "").replace("_", "").isalnum() else f"({text})"


def _is_uniform_in_warp(value: Polynomial, slope: Polynomial | None, divisor: int | None) -> bool:
    """Return True if a quotient is the same throughout a warp: its threads count up by one from a multiple of 32."""
    if slope is None or slope.constant != 1 or divisor is None or divisor % WARP:
        return False
    rest = [(name, times) for name, times in value.terms.items() if name != (THREAD_X,)]
    return all(times % WARP == 0 or any(part.startswith(_OF_BLOCKS) for part in name) for name, times in rest)


def make_unknown_pointer(element: str) -> Pointer:
    """Return a pointer to an unknown place."""
    return Pointer(Base("?", Space.UNKNOWN), ZERO, element)


def count_bank_turns(
    symbols: Symbols, offset: Polynomial, element_bytes: int | None, *, plane: bool, width: int | None = None
) -> int | None:
    """Return the turns that a warp's access of shared memory takes; 1 without a conflict, None if unknown.

    There are 32 banks of 4 bytes, and a bank serves one word a turn. For elements of 8 and 16 bytes, half and a quarter
    of a warp are served at once. A stride that is a multiple of a known even number counts as that number.

    In a kernel of more than one dimension (`plane`), a warp is as wide as the block if its `width` is known. Otherwise
    4, 8, 16 and 32 threads are tried: all of them must agree on a conflict, and the widest gives the turns.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#shared-memory-5-x
    """
    if element_bytes is None or element_bytes not in (1, 2, 4, 8, 16):
        return None
    stride = symbols.compute_stride(offset)
    step = stride.elements
    if step is None:
        # `2*s` may be any multiple of 2; an odd multiple uses the same banks.
        if stride.factor % 2 or not stride.factor or element_bytes != 4 or plane:
            return None
        step = stride.factor
    if not plane:
        return _count_strided_turns(step, 0, WARP, element_bytes)
    down = offset.compute_slope("threadIdx.y")
    rows = None if down is None or "y" in symbols.get_varies(down) else down.constant
    if rows is None:
        return None if step not in (0, 1) else 1
    return pick_agreed_turns([_count_strided_turns(step, rows, one, element_bytes) for one in list_warp_widths(width)])


def list_warp_widths(known: int | None) -> Sequence[int]:
    """Return the widths in x that a warp may have in its block."""
    return (4, 8, 16, WARP) if known is None else (min(known, WARP),)


def pick_agreed_turns(turns: Sequence[int]) -> int | None:
    """Return the turns of the widest warp, if all or none have a conflict."""
    return turns[-1] if min(turns) > 1 or max(turns) == 1 else None


@functools.lru_cache(maxsize=1024)
def _count_strided_turns(step: int, rows: int, width: int, element_bytes: int) -> int:
    """Return the turns of a warp `width` threads wide, with elements `step` apart along x and `rows` along y."""
    lanes = range(min(WARP, WARP * 4 // element_bytes))
    places = ((lane % width * step + lane // width * rows) * element_bytes // 4 for lane in lanes)
    return count_bank_words(places, max(1, element_bytes // 4))


def count_bank_words(places: Iterable[int], wide: int) -> int:
    """Return the most words in one bank that accesses `wide` words each, at these places, need."""
    banks: dict[int, set[int]] = {}
    for first in places:
        for word in range(first, first + wide):
            banks.setdefault(word % WARP, set()).add(word)
    return max(map(len, banks.values()), default=1)


_MOST_PRODUCTS = 10 * MOST_TERMS
"""Limit on terms when two numbers are multiplied: so many do not cancel to a usable size."""


def apply_operator(symbols: Symbols, sign: str, one: Polynomial, other: Polynomial) -> Polynomial:
    """Return `one sign other`."""
    if sign == "+":
        return one + other
    if sign == "-":
        return one - other
    if sign == "*":
        if len(one.terms) * len(other.terms) > _MOST_PRODUCTS:
            return symbols.create_symbol("long", symbols.get_varies(one) | symbols.get_varies(other))
        return one * other
    by = other.constant
    if sign in ("/", "%"):
        return divide_numbers(symbols, sign, one, other)
    if sign == "<<" and by is not None and 0 <= by < 64:
        return one * make_constant(1 << by)
    if sign == ">>" and by is not None and 0 <= by < 64:
        return divide_numbers(symbols, "/", one, make_constant(1 << by))
    if sign == "&":
        mask = by if by is not None else one.constant
        value = one if by is not None else other
        # A mask of the lowest bits is a remainder.
        if mask is not None and mask > 0 and mask & (mask + 1) == 0:
            return divide_numbers(symbols, "%", value, make_constant(mask + 1))
    if sign == "|" and by == 0:
        return one
    varies = symbols.get_varies(one) | symbols.get_varies(other)
    return symbols.get_derived_symbol(
        f"({one} {sign} {other})", varies, remainder=sign == "&", of=SymbolOperation(sign, one, other)
    )


def divide_numbers(symbols: Symbols, sign: str, one: Polynomial, other: Polynomial) -> Polynomial:
    """Return `one / other` or `one % other`."""
    one_value, by = one.constant, other.constant
    if one_value is not None and by is not None and by > 0 and one_value >= 0:
        return make_constant(one_value // by if sign == "/" else one_value % by)
    if by == 0 or not other.terms:
        return symbols.create_symbol("division", ANYTHING)
    quotient = symbols.divide(one, other)
    return quotient if sign == "/" else one - other * quotient


def scale_index(index: Polynomial, inner: tuple[Polynomial, ...]) -> Polynomial:
    """Return an index in elements: each step of it skips all elements of the `inner` dimensions."""
    for size in inner:
        index = index * size
    return index
