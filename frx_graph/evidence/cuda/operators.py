"""Expressions that are put together of others by operators, and what they begin with: names and numbers."""

from __future__ import annotations

import re

from tree_sitter import Node

from frx_graph.evidence.cuda.conditions import decide
from frx_graph.evidence.cuda.constants import fold
from frx_graph.evidence.cuda.places import assign, cast, place
from frx_graph.evidence.cuda.polynomial import ZERO, Polynomial, number
from frx_graph.evidence.cuda.source import Access, Product, Use
from frx_graph.evidence.cuda.state import State, evaluate, number_of
from frx_graph.evidence.cuda.syntax import said
from frx_graph.evidence.cuda.values import ANYTHING, INDEX_OBJECTS, UNIFORM, WARP, Pointer, Value, arithmetic, scaled

_WARP_SIZE = re.compile(r"warp_?size|threads_?per_?warp|warp_?threads", re.IGNORECASE)
"""What constants are called that another file defines."""
_WAITS = re.compile(rb"sync|wait|barrier|reduce|scan|sort", re.IGNORECASE)
"""In the names of functions in which threads may wait."""
WAITING = "lambda:waiting"
"""What the symbol of a lambda begins with in which they may."""


def name(state: State, node: Node) -> Value:
    """A variable, a constant, or what the file does not say."""
    text = said(state.text, node)
    value = state.names.get(text)
    if value is not None:
        if text in state.places and isinstance(value, Pointer):
            return state.access(node, value, Use.READ)
        return value
    if text in state.constants:
        return number(state.constants[text])
    if _WARP_SIZE.search(text) is not None:
        return number(WARP)
    # A template parameter, a macro, a variable of the file: the same for all threads, unless a macro hides an index.
    return state.symbols.same(text, UNIFORM if text not in INDEX_OBJECTS else ANYTHING)


def qualified_name(state: State, node: Node) -> Value:
    """`N::a`."""
    text = said(state.text, node)
    folded = state.constants.get(text.rsplit("::", 1)[-1])
    return number(folded) if folded is not None else state.symbols.same(text, UNIFORM)


def size(state: State, node: Node) -> Value:
    """`sizeof(float)`."""
    text = said(state.text, node)
    folded = fold(text, state.constants)
    return number(folded) if folded is not None else state.symbols.same(text, UNIFORM)


def literal(state: State, node: Node) -> Value:
    """A number, which is a symbol unless it is a whole one."""
    text = said(state.text, node)
    value = fold(text, {})
    return number(value) if value is not None else state.symbols.same(f"={text}", UNIFORM)


def truth(_: State, node: Node) -> Value:
    """`true`, `false`."""
    return number(int(node.type == "true"))


def binary(state: State, node: Node) -> Value:
    """`a + b`."""
    parts = node.children
    if len(parts) == 3:
        sign = parts[1].type
        left, right = evaluate(state, parts[0]), evaluate(state, parts[2])
    else:
        # There is a comment in it.
        sign = ""
        left = evaluate(state, node.child_by_field_name("left"))
        right = evaluate(state, node.child_by_field_name("right"))
    if sign in ("+", "-"):
        if isinstance(left, Pointer) and isinstance(right, Polynomial):
            moved = scaled(right, left.inner)
            return _moved(left, left.offset + moved if sign == "+" else left.offset - moved)
        if sign == "+" and isinstance(right, Pointer) and isinstance(left, Polynomial):
            return _moved(right, right.offset + scaled(left, right.inner))
    if not isinstance(left, Polynomial) or not isinstance(right, Polynomial):
        left, right = number_of(state, left), number_of(state, right)
    return state.symbols.kept(arithmetic(state.symbols, sign, left, right))


def _moved(pointer: Pointer, offset: Polynomial) -> Pointer:
    return Pointer(pointer.base, offset, pointer.element, pointer.inner)


def unary(state: State, node: Node) -> Value:
    """`-a`, `!a`, `~a`."""
    inner = number_of(state, evaluate(state, node.child_by_field_name("argument")))
    sign = node.children[0].type
    if sign == "-":
        return ZERO - inner
    return inner if sign == "+" else state.symbols.fresh("unary", state.symbols.of(inner))


def parenthesized(state: State, node: Node) -> Value:
    """`(a)`."""
    inner = node.named_children
    return evaluate(state, inner[-1] if inner else None)


def converted(state: State, node: Node) -> Value:
    """`(float*) a`."""
    to = said(state.text, node.child_by_field_name("type"))
    return cast(state, to, evaluate(state, node.child_by_field_name("value")))


def comma(state: State, node: Node) -> Value:
    """`a, b`."""
    evaluate(state, node.child_by_field_name("left"))
    return evaluate(state, node.child_by_field_name("right"))


def choice(state: State, node: Node) -> Value:
    """`a ? b : c`."""
    condition = node.child_by_field_name("condition")
    if condition is None:
        return state.symbols.fresh("choice", ANYTHING)
    decision = decide(state, condition)
    one = evaluate(state, node.child_by_field_name("consequence"))
    other = evaluate(state, node.child_by_field_name("alternative"))
    return state.symbols.join(one, other, decision.varies, state.symbols.tried(decision.tests, decision.varies))


def function(state: State, node: Node) -> Value:
    """A lambda, which is not looked into, but for whether it may be a barrier."""
    waits = _WAITS.search(state.text, node.start_byte, node.end_byte) is not None
    return state.symbols.fresh(WAITING if waits else "lambda", ANYTHING)


def assignment(state: State, node: Node) -> Value:
    """`a = b`, `a += b`."""
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    sign = said(state.text, node.child_by_field_name("operator")) or "="
    if left is None or right is None:
        return state.symbols.fresh("assigned", ANYTHING)
    value = evaluate(state, right)
    at = place(state, left)
    if sign == "=":
        _note_product(state, node, at, value, sign)
        assign(state, left, at, value)
        return value
    old = state.names.get(at, state.symbols.fresh("old", ANYTHING)) if isinstance(at, str) else None
    if isinstance(at, Pointer):
        old = state.access(left, at, Use.READ)
    _note_product(state, node, at, value, sign)
    if isinstance(old, Pointer) and isinstance(value, Polynomial) and sign in ("+=", "-="):
        moved = scaled(value, old.inner)
        new: Value = _moved(old, old.offset + moved if sign == "+=" else old.offset - moved)
    else:
        known = number_of(state, old) if old is not None else state.symbols.fresh("old", ANYTHING)
        new = state.symbols.kept(arithmetic(state.symbols, sign[:-1], known, number_of(state, value)))
    assign(state, left, at, new)
    return new


def _note_product(state: State, node: Node, at: Pointer | str | None, value: Value, sign: str) -> None:
    """`sum += a[i] * b[j]`, also as `sum = sum + …` and `sum = fma(…, sum)`: a term with exactly two loaded factors."""
    if not state.loops or not isinstance(value, Polynomial) or sign not in ("=", "+="):
        return
    if sign == "=" and not (isinstance(at, str) and isinstance(state.names.get(at), Polynomial)):
        return
    if sign == "=":
        assert isinstance(at, str)
        old = state.names[at]
        assert isinstance(old, Polynomial)
        if not old.terms or not all(name in value.terms for name in old.terms):
            return
    products = [name for name in value.terms if len(name) == 2 and all(one in state.symbols.loaded for one in name)]
    # Of a squared difference, `a*a - 2*a*b + b*b`, the middle is no product of two operands.
    if not products or any(left == right or value.terms[left, right] != 1 for left, right in products):
        return
    indices = [state.symbols.loaded[symbol] for symbol in products[0]]
    left, right = (state.events[index] if index < len(state.events) else None for index in indices)
    if isinstance(left, Access) and isinstance(right, Access) and left.base != right.base:
        state.add(Product(state.step(node), left, right))


def update(state: State, node: Node) -> Value:
    """`a++`, `--a`."""
    inner = node.child_by_field_name("argument")
    if inner is None:
        return state.symbols.fresh("update", ANYTHING)
    parts = node.children
    by = number(1 if any(child.type == "++" for child in parts) else -1)
    at = place(state, inner)
    if isinstance(at, str):
        old = state.names.get(at)
        if isinstance(old, Pointer):
            new: Value = _moved(old, old.offset + scaled(by, old.inner))
        else:
            known = old if isinstance(old, Polynomial) else state.symbols.fresh(at, ANYTHING)
            old, new = known, state.symbols.kept(known + by)
        state.names[at] = new
        return new if parts[0] != inner else old
    if isinstance(at, Pointer):
        value = state.access(inner, at, Use.READ)
        state.access(inner, at, Use.WRITE)
        return value
    return state.symbols.fresh("update", ANYTHING)
