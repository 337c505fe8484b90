"""Which names a loop changes, and how: by a constant step, or in a way that cannot be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tree_sitter import Node

from frx_graph.evidence.cuda.syntax import said, walk

_CONDITIONAL = frozenset(["if_statement", "switch_statement", "while_statement", "for_statement", "do_statement"])
_STEPS = {"+=": 1, "-=": -1}


@dataclass(frozen=True, slots=True)
class Change:
    """`name` becomes something else. `by` is what is added (`sign` 1) or subtracted (-1) each time; None for any other
    assignment, of `value`. `once` is True if it happens exactly once each time around."""

    sign: int
    by: Node | None
    value: Node | None
    once: bool
    one: bool = False
    """`++` and `--`: there is no `by`, it is 1."""


def changes(loop: Node) -> Mapping[str, list[Change]]:
    """By name, what happens to it in a loop, its head included; declarations are not changes."""
    found: dict[str, list[Change]] = {}
    waiting = [(child, False) for child in loop.children if child != loop.child_by_field_name("initializer")]
    while waiting:
        node, nested = waiting.pop()
        if node.type == "assignment_expression":
            left, sign = node.child_by_field_name("left"), said(node.child_by_field_name("operator"))
            right = node.child_by_field_name("right")
            name = _root(left)
            if name is not None:
                step = _STEPS.get(sign) if left is not None and left.type == "identifier" else None
                by = right if step is not None else None
                found.setdefault(name, []).append(Change(step or 0, by, right, not nested))
        elif node.type == "update_expression":
            inner = node.child_by_field_name("argument")
            if inner is not None and inner.type == "identifier":
                up = any(child.type == "++" for child in node.children)
                found.setdefault(said(inner), []).append(Change(1 if up else -1, None, None, not nested, True))
        elif node.type == "pointer_expression" and node.children[0].type == "&":
            inner = node.child_by_field_name("argument")
            if inner is not None and inner.type == "identifier":
                found.setdefault(said(inner), []).append(Change(0, None, None, False))
        elif node.type == "gnu_asm_output_operand":
            value = node.child_by_field_name("value")
            if value is not None:
                found.setdefault(said(value), []).append(Change(0, None, None, False))
        inside = nested or node.type in _CONDITIONAL
        waiting.extend((child, inside) for child in node.named_children)
    return found


def identifiers(node: Node) -> set[str]:
    """The names in an expression."""
    return {said(inner) for inner in walk(node) if inner.type == "identifier"}


def loads(node: Node) -> bool:
    """True of an expression whose value may come from memory, or from somewhere that is not looked into."""
    return any(inner.type in ("subscript_expression", "call_expression", "pointer_expression") for inner in walk(node))


def _root(node: Node | None) -> str | None:
    """The name that an assignment changes; of an element of an array none, of a structure's part the structure."""
    while node is not None and node.type in ("parenthesized_expression", "field_expression"):
        if node.type == "field_expression":
            node = node.child_by_field_name("argument")
        else:
            node = node.named_children[0] if node.named_children else None
    return said(node) if node is not None and node.type == "identifier" else None
