"""Read the conditions that decide if a thread continues: tests of numbers, joined by `&&`, `||` and `!`."""

from __future__ import annotations

from dataclasses import replace

from tree_sitter import Node

from frx_graph.evidence.cuda.concrete import OPPOSITE, SymbolOperation, Test, TestGroup, iterate_tests
from frx_graph.evidence.cuda.polynomial import Polynomial
from frx_graph.evidence.cuda.source import Condition
from frx_graph.evidence.cuda.state import DEEPEST, State, convert_to_number, evaluate
from frx_graph.evidence.cuda.syntax import get_line, get_text
from frx_graph.evidence.cuda.values import ANYTHING, THREAD_X, UNIFORM, WARP, Symbols, Varies
from frx_graph.evidence.record import record

_THREAD = frozenset(["x", "y", "z"])
_BUILT_IN = ("threadIdx.", "blockIdx.", "blockDim.", "gridDim.")
_WARPS = f"(blockDim.x)/({WARP})"
_TEXT = 120
JOINTS = {"&&": True, "and": True, "||": False, "or": False}
"""Operators that join tests: True if all must hold."""


@record
class Decision:
    """A parsed condition, for use as it is or negated."""

    line: int
    text: str
    tests: Test | TestGroup
    varies: Varies

    def make_condition(self, symbols: Symbols, *, negated: bool = False, early: bool = False) -> Condition:
        """Return the condition for the threads that fulfil it; for the others, if negated."""
        tests = _negate(self.tests) if negated else self.tests
        return replace(
            _derive_facts(symbols, tests),
            line=self.line,
            text=self.text,
            data="data" in self.varies,
            early=early,
            varies=self.varies,
            tests=tests,
        )


def read_condition(state: State, node: Node) -> Decision:
    """Reads a condition and its effects on memory."""
    return _decide(state, node, _parse_tests(state, node))


def _decide(state: State, node: Node, tests: Test | TestGroup) -> Decision:
    varies = UNIFORM.union(*(state.symbols.get_varies(test.difference) for test in iterate_tests(tests)))
    return Decision(get_line(node), get_text(state.text, node)[:_TEXT], tests, varies)


def _parse_tests(state: State, node: Node) -> Test | TestGroup:
    while node.type in ("parenthesized_expression", "condition_clause") and len(node.named_children) == 1:
        node = node.named_children[0]
    state.depth += 1
    tests = _parse_operators(state, node) if state.depth < DEEPEST else None
    state.depth -= 1
    return tests or Test("!=", convert_to_number(state, evaluate(state, node)))


def _parse_operators(state: State, node: Node) -> Test | TestGroup | None:
    """Return the tests of a negation, a comparison, or tests joined by `&&` or `||`; None for anything else."""
    inner = node.child_by_field_name("argument")
    if node.type == "unary_expression" and node.children[0].type == "!" and inner is not None:
        return _negate(_parse_tests(state, inner))
    if node.type != "binary_expression" or len(node.children) != 3:
        return None
    sign = node.children[1].type
    left, right = node.children[0], node.children[2]
    if sign in JOINTS:
        first = _parse_tests(state, left)
        # The right side is read only by the threads that the left one does not decide for.
        before, decided = state.conditions, _decide(state, left, first)
        state.require_condition(decided.make_condition(state.symbols, negated=not JOINTS[sign]))
        known = dict(state.names)
        second = _parse_tests(state, right)
        state.conditions = before
        # What the right side assigns keeps its value in the other threads.
        for name, value in state.names.items():
            if isinstance(value, Polynomial) and known.get(name) is not value:
                state.names[name] = state.symbols.create_symbol(name, ANYTHING - {"data"})
        return TestGroup(JOINTS[sign], (first, second))
    if sign not in OPPOSITE:
        return None
    one = convert_to_number(state, evaluate(state, left))
    other = convert_to_number(state, evaluate(state, right))
    return Test(sign, one - other)


def _negate(tests: Test | TestGroup) -> Test | TestGroup:
    if isinstance(tests, Test):
        return Test(OPPOSITE[tests.sign], tests.difference)
    return TestGroup(not tests.all, tuple(map(_negate, tests.tests)))


def _derive_facts(symbols: Symbols, tests: Test | TestGroup) -> Condition:
    """Return a condition with the flags that the tests alone decide."""
    if isinstance(tests, TestGroup):
        found = [_derive_facts(symbols, one) for one in tests.tests]
        widths = [one.width for one in found if one.thread]
        known = [width for width in widths if width is not None]
        return Condition(
            thread=any(one.thread for one in found),
            lane=any(one.lane for one in found),
            single=(any if tests.all else all)(one.single for one in found),
            bounds=any(one.bounds for one in found),
            modulo=any(one.modulo for one in found),
            ragged=any(one.ragged for one in found),
            width=min(known) if tests.all and known and len(known) == len(widths) else None,
        )
    sign, difference = tests.sign, tests.difference
    varies, equal = symbols.get_varies(difference), sign in ("==", "!=")
    bounds = not equal and bool(varies & {"block", *_THREAD})
    if "data" in varies:
        return Condition(bounds=bounds)
    slope = symbols.compute_lane_slope(difference)
    step = None if slope is None else slope.constant
    # The term beside the thread's own index, if it is a number.
    alone = step is not None and difference.terms.keys() <= {(), (THREAD_X,)}
    rest = difference.terms.get((), 0) if alone else None
    # For threads in order, a limit at a multiple of a warp selects whole warps.
    cuts = bool(step) and rest is not None and not (step in (1, -1) and rest % WARP == 0)
    modulo = equal and slope is None and _is_remainder(symbols, difference)
    return Condition(
        thread=bool(varies & _THREAD) and (equal or _is_launch_known(symbols, difference)),
        lane="lane" in varies and (modulo or (equal and bool(step)) or cuts),
        single=(sign == "==" and bool(step)) or (sign == "<" and step == 1 and rest == -1),
        bounds=bounds,
        modulo=modulo,
        ragged=bool(step) and not equal and _is_launched(symbols, difference),
        width=None if sign != "<" or step != 1 or rest is None else -rest,
    )


def _is_remainder(symbols: Symbols, difference: Polynomial) -> bool:
    """Return True if only the thread's place and quotients of it differ within a warp, so a remainder or bits of it."""
    differing = [symbol for symbol in difference.iterate_symbols() if "lane" in symbols.varies[symbol]]
    return bool(differing) and all(_is_of_place(symbols, symbol) for symbol in differing)


def _is_of_place(symbols: Symbols, symbol: str) -> bool:
    """Return True for the thread's place, and for quotients and bits of sums of it. In `(row * n + column) % 4`, all
    rows may begin alike."""
    if symbol == THREAD_X:
        return True
    if symbol not in symbols.remainders:
        return False
    part = symbols.parts.get(symbol)
    terms = (*part.one.terms, *part.other.terms) if isinstance(part, SymbolOperation) else ()
    differing = [name for name in terms if any("lane" in symbols.varies[one] for one in name)]
    return all(len(name) == 1 and _is_of_place(symbols, name[0]) for name in differing)


def _is_launched(symbols: Symbols, difference: Polynomial) -> bool:
    """Return True for a limit that a launch gives, by a parameter or as the warps of a block."""
    return any(len(name) == 1 and (name[0] in symbols.given or name[0] == _WARPS) for name in difference.terms)


def _is_launch_known(symbols: Symbols, difference: Polynomial) -> bool:
    """Return False for a limit that is fixed when it is compiled, but unknown here. It may be a multiple of the block,
    so that the condition is the same for all threads."""
    return _is_launched(symbols, difference) or all(
        name in symbols.given
        or (symbols.varies[name] & _THREAD and "/" in name)
        or name.startswith(("loop:", *_BUILT_IN))
        or "#" in name
        for name in difference.iterate_symbols()
    )
