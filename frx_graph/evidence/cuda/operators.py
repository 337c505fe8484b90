"""Read expressions built from others by operators, and their leaves: names and numbers."""

from __future__ import annotations

import re

from tree_sitter import Node

from frx_graph.evidence.cuda.concrete import OPPOSITE
from frx_graph.evidence.cuda.conditions import JOINTS, read_condition
from frx_graph.evidence.cuda.constants import fold_constant
from frx_graph.evidence.cuda.places import cast_value, resolve_place
from frx_graph.evidence.cuda.polynomial import ZERO, Polynomial, make_constant
from frx_graph.evidence.cuda.source import Access, Product, Space, Use
from frx_graph.evidence.cuda.state import State, convert_to_number, evaluate
from frx_graph.evidence.cuda.syntax import get_text
from frx_graph.evidence.cuda.values import (
    ANYTHING,
    INDEX_OBJECTS,
    UNIFORM,
    WARP,
    Pointer,
    Value,
    apply_operator,
    scale_index,
)

_WARP_SIZE = re.compile(r"warp_?size|threads_?per_?warp|warp_?threads", re.IGNORECASE)
"""Names of the warp size in constants from other files."""
_WAITS = re.compile(rb"sync|wait|barrier|reduce|scan|sort", re.IGNORECASE)
"""Parts of names of functions in which threads may wait."""
WAITING = "lambda:waiting"
"""Prefix of a symbol for a lambda in which threads may wait."""


def evaluate_name(state: State, node: Node) -> Value:
    """Read a variable, a constant, or an unknown name."""
    text = get_text(state.text, node)
    value = state.names.get(text)
    if value is not None:
        if text in state.places and isinstance(value, Pointer):
            return state.record_access(node, value, Use.READ)
        return value
    if text in state.constants:
        return make_constant(state.constants[text])
    if _WARP_SIZE.search(text) is not None:
        return make_constant(WARP)
    # A template parameter, a macro, a variable of the file: the same for all threads, unless a macro hides an index.
    return state.symbols.get_symbol(text, UNIFORM if text not in INDEX_OBJECTS else ANYTHING)


def evaluate_qualified_name(state: State, node: Node) -> Value:
    """`N::a`."""
    text = get_text(state.text, node)
    folded = state.constants.get(text.rsplit("::", 1)[-1])
    return make_constant(folded) if folded is not None else state.symbols.get_symbol(text, UNIFORM)


def evaluate_sizeof(state: State, node: Node) -> Value:
    """`sizeof(float)`."""
    text = get_text(state.text, node)
    folded = fold_constant(text, state.constants)
    return make_constant(folded) if folded is not None else state.symbols.get_symbol(text, UNIFORM)


def evaluate_literal(state: State, node: Node) -> Value:
    """Read a number or a boolean, which is a symbol unless it is an integer."""
    text = get_text(state.text, node)
    value = fold_constant(text, {"true": 1, "false": 0})
    return make_constant(value) if value is not None else state.symbols.get_symbol(f"={text}", UNIFORM)


def evaluate_binary(state: State, node: Node) -> Value:
    """`a + b`."""
    parts = node.children
    # With more parts, the node contains a comment.
    sign = parts[1].type if len(parts) == 3 else ""
    if sign in JOINTS or sign in OPPOSITE:
        decision = read_condition(state, node)
        return state.symbols.create_truth(decision.tests, decision.varies)
    left, right = (evaluate(state, node.child_by_field_name(side)) for side in ("left", "right"))
    if sign in ("+", "-") and isinstance(left, Pointer) and isinstance(right, Polynomial):
        return _move_pointer(left, right if sign == "+" else ZERO - right)
    if sign == "+" and isinstance(right, Pointer) and isinstance(left, Polynomial):
        return _move_pointer(right, left)
    one, other = convert_to_number(state, left), convert_to_number(state, right)
    return state.symbols.limit_size(apply_operator(state.symbols, sign, one, other))


def _move_pointer(pointer: Pointer, by: Polynomial) -> Pointer:
    offset = pointer.offset + scale_index(by, pointer.inner)
    return Pointer(pointer.base, offset, pointer.element, pointer.inner)


def evaluate_unary(state: State, node: Node) -> Value:
    """`-a`, `!a`, `~a`."""
    inner = convert_to_number(state, evaluate(state, node.child_by_field_name("argument")))
    sign = node.children[0].type
    if sign == "-":
        return ZERO - inner
    return inner if sign == "+" else state.symbols.create_symbol("unary", state.symbols.get_varies(inner))


def evaluate_parenthesized(state: State, node: Node) -> Value:
    """`(a)`."""
    return evaluate(state, next(reversed(node.named_children), None))


def evaluate_cast(state: State, node: Node) -> Value:
    """`(float*) a`."""
    to = get_text(state.text, node.child_by_field_name("type"))
    return cast_value(state, to, evaluate(state, node.child_by_field_name("value")))


def evaluate_comma(state: State, node: Node) -> Value:
    """`a, b`."""
    evaluate(state, node.child_by_field_name("left"))
    return evaluate(state, node.child_by_field_name("right"))


def evaluate_conditional(state: State, node: Node) -> Value:
    """`a ? b : c`."""
    condition = node.child_by_field_name("condition")
    if condition is None:
        return state.symbols.create_symbol("choice", ANYTHING)
    decision = read_condition(state, condition)
    one, other = (evaluate(state, node.child_by_field_name(side)) for side in ("consequence", "alternative"))
    tests = state.symbols.filter_tests(decision.tests, decision.varies)
    return state.symbols.join_values(one, other, decision.varies, tests)


def evaluate_lambda(state: State, node: Node) -> Value:
    """Read a lambda, only to find out if it may be a barrier."""
    waits = _WAITS.search(state.text, node.start_byte, node.end_byte) is not None
    return state.symbols.create_symbol(WAITING if waits else "lambda", ANYTHING)


def evaluate_assignment(state: State, node: Node) -> Value:
    """`a = b`, `a += b`."""
    left = node.child_by_field_name("left")
    sign = get_text(state.text, node.child_by_field_name("operator")) or "="
    if left is None:
        return state.symbols.create_symbol("assigned", ANYTHING)
    value = evaluate(state, node.child_by_field_name("right"))
    at = resolve_place(state, left)
    old = state.names.get(at) if isinstance(at, str) else None
    if isinstance(at, Pointer) and sign != "=":
        old = state.record_access(left, at, Use.READ)
    _note_product(state, node, at, value, sign)
    new: Value = value
    if isinstance(old, Pointer) and isinstance(value, Polynomial) and sign in ("+=", "-="):
        new = _move_pointer(old, value if sign == "+=" else ZERO - value)
    elif sign != "=":
        known = convert_to_number(state, old) if old is not None else state.symbols.create_symbol("old", ANYTHING)
        new = state.symbols.limit_size(apply_operator(state.symbols, sign[:-1], known, convert_to_number(state, value)))
    if isinstance(at, str):
        state.names[at] = new
    elif at is not None:
        state.record_access(left, at, Use.WRITE)
        if at.base.space is Space.LOCAL:
            state.note_source(at.base.name, new)
    return new


def _note_product(state: State, node: Node, at: Pointer | str | None, value: Value, sign: str) -> None:
    """Record `sum += a[i] * b[j]`, also as `sum = sum + …` and `sum = fma(…, sum)`: a term of two loaded factors."""
    if not state.loops or not isinstance(value, Polynomial) or sign not in ("=", "+="):
        return
    if sign == "=":
        old = state.names.get(at) if isinstance(at, str) else None
        if not isinstance(old, Polynomial) or not old.terms or not old.terms.keys() <= value.terms.keys():
            return
    products = [name for name in value.terms if len(name) == 2 and all(one in state.symbols.loaded for one in name)]
    # In a squared difference, `a*a - 2*a*b + b*b`, the middle term is not a product of two operands.
    if not products or any(left == right or value.terms[left, right] != 1 for left, right in products):
        return
    indices = [state.symbols.loaded[symbol] for symbol in products[0]]
    left, right = (state.events[index] if index < len(state.events) else None for index in indices)
    if isinstance(left, Access) and isinstance(right, Access) and left.base != right.base:
        state.add_event(Product(state.make_step(node), left, right))


def evaluate_update(state: State, node: Node) -> Value:
    """`a++`, `--a`."""
    inner, parts = node.child_by_field_name("argument"), node.children
    by = make_constant(1 if any(child.type == "++" for child in parts) else -1)
    at = resolve_place(state, inner)
    if inner is None or at is None:
        return state.symbols.create_symbol("update", ANYTHING)
    if isinstance(at, Pointer):
        value = state.record_access(inner, at, Use.READ)
        state.record_access(inner, at, Use.WRITE)
        return value
    old = state.names.get(at)
    if isinstance(old, Pointer):
        new: Value = _move_pointer(old, by)
    else:
        old = old if isinstance(old, Polynomial) else state.symbols.create_symbol(at, ANYTHING)
        new = state.symbols.limit_size(old + by)
    state.names[at] = new
    return new if parts[0] != inner else old
