"""What an expression is worth to a thread: each kind of it has an evaluator, which evaluates its parts."""

from __future__ import annotations

from tree_sitter import Node

from frx_graph.evidence.cuda.polynomial import Polynomial
from frx_graph.evidence.cuda.state import DEEPEST, State
from frx_graph.evidence.cuda.values import ANYTHING, UNIFORM, Value


def evaluate(state: State, node: Node | None) -> Value:
    """The value; what nothing is known of is a new symbol that may vary with anything."""
    if node is None:
        return state.symbols.fresh("none", ANYTHING)
    if state.depth >= DEEPEST:
        return state.symbols.fresh("deep", ANYTHING)
    state.depth += 1
    kind = node.type
    evaluator = state.evaluators.get(kind)
    value = evaluator(state, node) if evaluator is not None else _of_parts(state, node, kind)
    state.depth -= 1
    return value


def number_of(state: State, value: Value) -> Polynomial:
    """The value as a number; of a pointer or a group one that nothing is known of."""
    return value if isinstance(value, Polynomial) else state.symbols.fresh("address", ANYTHING)


def _of_parts(state: State, node: Node, kind: str) -> Value:
    varies = UNIFORM
    for child in node.named_children:
        varies |= state.symbols.of(evaluate(state, child))
    return state.symbols.fresh(kind, varies)
