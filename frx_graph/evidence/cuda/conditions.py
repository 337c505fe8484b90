"""Reads the conditions that decide whether a thread goes on: tests of numbers, joined by `&&`, `||` and `!`."""

from __future__ import annotations

from collections.abc import Sequence

from tree_sitter import Node

from frx_graph.evidence.cuda.concrete import OPPOSITE, Several, Test
from frx_graph.evidence.cuda.polynomial import Polynomial
from frx_graph.evidence.cuda.record import record
from frx_graph.evidence.cuda.source import Condition
from frx_graph.evidence.cuda.state import DEEPEST, State, evaluate, number_of
from frx_graph.evidence.cuda.syntax import line_of, said
from frx_graph.evidence.cuda.values import THREAD_X, UNIFORM, WARP, Symbols, Varies

_RELATIONS = frozenset(["<", "<=", ">", ">="])
_THREAD = frozenset(["x", "y", "z"])
_BUILT_IN = ("threadIdx.", "blockIdx.", "blockDim.", "gridDim.")
_WARPS = f"(blockDim.x)/({WARP})"
_TEXT = 120


@record
class Decision:
    """A condition that was read once, and can be taken as it is or negated."""

    line: int
    text: str
    tests: Test | Several
    varies: Varies

    def condition(self, symbols: Symbols, *, negated: bool = False, early: bool = False) -> Condition:
        """Return the condition of the threads for which it holds; of the others, if negated."""
        found = _facts(symbols, self.tests, negated)
        return Condition(
            line=self.line,
            text=self.text,
            thread=found.thread,
            lane=found.lane,
            single=found.single,
            bounds=found.bounds,
            modulo=found.modulo,
            data="data" in self.varies,
            early=early,
            ragged=found.ragged,
            width=found.width,
            varies=self.varies,
            tests=_negated(self.tests) if negated else self.tests,
        )


@record
class _Facts:
    thread: bool
    lane: bool
    single: bool
    bounds: bool
    modulo: bool
    ragged: bool = False
    width: int | None = None


def decide(state: State, node: Node) -> Decision:
    """Reads a condition, and what it does to memory."""
    tests = _read(state, node, 0)
    return Decision(line_of(node), said(state.text, node)[:_TEXT], tests, _varies(state.symbols, tests))


def _read(state: State, node: Node, depth: int) -> Test | Several:
    while node.type in ("parenthesized_expression", "condition_clause") and len(node.named_children) == 1:
        node = node.named_children[0]
    if depth < DEEPEST and node.type == "unary_expression" and node.children[0].type == "!":
        inner = node.child_by_field_name("argument")
        if inner is not None:
            return _negated(_read(state, inner, depth + 1))
    if depth < DEEPEST and node.type == "binary_expression" and len(node.children) == 3:
        sign = node.children[1].type
        left, right = node.children[0], node.children[2]
        if sign in ("&&", "||", "and", "or"):
            both = (_read(state, left, depth + 1), _read(state, right, depth + 1))
            return Several(sign in ("&&", "and"), both)
        if sign in OPPOSITE:
            one = number_of(state, evaluate(state, left))
            other = number_of(state, evaluate(state, right))
            return Test(sign, one - other)
    return Test("!=", number_of(state, evaluate(state, node)))


def _negated(tests: Test | Several) -> Test | Several:
    if isinstance(tests, Test):
        return Test(OPPOSITE[tests.sign], tests.difference)
    return Several(not tests.all, tuple(map(_negated, tests.tests)))


def _varies(symbols: Symbols, tests: Test | Several) -> Varies:
    if isinstance(tests, Test):
        return symbols.of(tests.difference)
    return UNIFORM.union(*(_varies(symbols, one) for one in tests.tests))


def _facts(symbols: Symbols, tests: Test | Several, negated: bool) -> _Facts:
    if isinstance(tests, Several):
        found = [_facts(symbols, one, negated) for one in tests.tests]
        together = any if tests.all != negated else all
        return _Facts(
            thread=any(one.thread for one in found),
            lane=any(one.lane for one in found),
            single=together(one.single for one in found),
            bounds=any(one.bounds for one in found),
            modulo=any(one.modulo for one in found),
            ragged=any(one.ragged for one in found),
            width=_width(found) if tests.all != negated else None,
        )
    sign = OPPOSITE[tests.sign] if negated else tests.sign
    varies = symbols.of(tests.difference)
    if "data" in varies:
        return _Facts(False, False, False, sign in _RELATIONS and bool(varies & {"block", *_THREAD}), False)
    slope = symbols.lane_slope(tests.difference)
    step = None if slope is None else slope.constant
    equal = sign in ("==", "!=")
    rest = None if slope is None or step is None else _rest(tests.difference)
    # Of threads in order, a limit at a multiple of a warp takes whole warps.
    cuts = step not in (None, 0) and rest is not None and not (step in (1, -1) and rest % WARP == 0)
    modulo = equal and slope is None and _is_remainder(symbols, tests.difference)
    return _Facts(
        thread=bool(varies & _THREAD) and (equal or _is_told(symbols, tests.difference)),
        lane="lane" in varies and (modulo or (equal and step not in (None, 0)) or cuts),
        single=(sign == "==" and step not in (None, 0)) or (sign == "<" and step == 1 and rest == -1),
        bounds=not equal and bool(varies & {"block", *_THREAD}),
        modulo=modulo,
        ragged=step not in (None, 0) and not equal and _is_launched(symbols, tests.difference),
        width=None if sign != "<" or step != 1 or rest is None else -rest,
    )


def _width(found: Sequence[_Facts]) -> int | None:
    """Return the width of conditions that must all hold."""
    widths = [one.width for one in found if one.thread]
    return None if not widths or None in widths else min(width for width in widths if width is not None)


def _rest(difference: Polynomial) -> int | None:
    """Return the term beside the thread's own index, if that is a number."""
    others = {name for name in difference.terms if name} - {("threadIdx.x",)}
    return None if others else difference.terms.get((), 0)


def _is_remainder(symbols: Symbols, difference: Polynomial) -> bool:
    """True if what differs within a warp is the thread's place and quotients of it, and so a remainder, or single bits
    of it."""
    differing = [symbol for symbol in difference.symbols() if "lane" in symbols.varies[symbol]]
    return bool(differing) and all(symbol == THREAD_X or symbol in symbols.remainders for symbol in differing)


def _is_launched(symbols: Symbols, difference: Polynomial) -> bool:
    """True of a limit that a launch gives, by a parameter or as the warps of a block."""
    return any(len(name) == 1 and (name[0] in symbols.given or name[0] == _WARPS) for name in difference.terms)


def _is_told(symbols: Symbols, difference: Polynomial) -> bool:
    """False of a limit that is fixed when it is compiled, and not known here: it may be a multiple of the block, so
    that the condition is the same for all."""
    return _is_launched(symbols, difference) or all(
        name in symbols.given
        or (symbols.varies[name] & _THREAD and "/" in name)
        or name.startswith(("loop:", *_BUILT_IN))
        or "#" in name
        for name in difference.symbols()
    )
