"""Find the names that a loop changes, and the constant step of each change if it has one."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tree_sitter import Node, Query, QueryCursor

from frx_graph.evidence.cuda.syntax import get_text, load_cuda_language, walk
from frx_graph.evidence.record import record

_QUERY = """
(assignment_expression) @assigned
(update_expression argument: (identifier)) @stepped
(pointer_expression "&" argument: (identifier) @address)
(gnu_asm_output_operand value: (_) @output)
[(if_statement) (switch_statement) (while_statement) (for_statement) (do_statement)] @conditional
(for_range_loop) @range
"""
_STEPS = {"+=": 1, "-=": -1}
_LOADS = frozenset(["subscript_expression", "call_expression", "pointer_expression"])


@record
class Change:
    """An assignment to `name`. `by` is the number added (`sign` 1) or subtracted (-1) each time, None for any other
    assignment of `value`. `once` is True if it happens exactly once per iteration."""

    sign: int
    by: Node | None
    value: Node | None
    once: bool
    one: bool = False
    """An assignment by `++` or `--`: `by` is always 1."""


class _ChangeEntry(NamedTuple):
    """A change, or a statement that may contain some. In this order a node comes before its content, whose nodes come
    last to first. `inside` counts the conditional statements around it."""

    negative_end: int
    start: int
    inside: int
    named: tuple[str, Change] | None


class Changes:
    """The changes in all loops of one function. A query of the parser searches the body once."""

    def __init__(self, text: bytes, body: Node) -> None:
        self._entries = _collect_entries(text, body)

    def find_in_loop(self, loop: Node) -> Mapping[str, list[Change]]:
        """Return the changes to each name in a loop, including its head; declarations are not changes."""
        initializer = loop.child_by_field_name("initializer")
        passed = range(*initializer.byte_range) if initializer is not None else range(0)
        start, end = loop.byte_range
        found: dict[str, list[Change]] = {}
        at = bisect.bisect_left(self._entries, (-end, start))
        inside = self._entries[at].inside
        for index in range(at + 1, len(self._entries)):
            _, begin, around, named = self._entries[index]
            if begin < start:
                break
            if named is not None and begin not in passed:
                name, change = named
                found.setdefault(name, []).append(change if around == inside else replace(change, once=False))
        return found


def collect_identifiers(text: bytes, node: Node) -> set[str]:
    """Return the names in an expression."""
    return {get_text(text, inner) for inner in walk(node) if inner.type == "identifier"}


def has_load(node: Node) -> bool:
    """Return True for an expression whose value may come from memory, or from an unknown place."""
    return any(inner.type in _LOADS for inner in walk(node))


@functools.cache
def _build_query() -> Query:
    return Query(load_cuda_language(), _QUERY)


def _collect_entries(text: bytes, body: Node) -> Sequence[_ChangeEntry]:
    captured = QueryCursor(_build_query()).captures(body).items()
    found = [(-node.end_byte, node.start_byte, kind, node) for kind, nodes in captured for node in nodes]
    entries: list[_ChangeEntry] = []
    around: list[int] = []
    for negative_end, start, kind, node in sorted(found, key=lambda one: one[:2]):
        # Drop conditional statements that begin after the end of this one.
        while around and around[-1] >= -negative_end:
            around.pop()
        if kind == "conditional":
            around.append(start)
        named = _parse_change(text, kind, node)
        if named is not None or kind in ("conditional", "range"):
            entries.append(_ChangeEntry(negative_end, start, len(around), named))
    return entries


def _parse_change(text: bytes, kind: str, node: Node) -> tuple[str, Change] | None:
    if kind == "assigned":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        name = _find_root_name(text, left)
        if name is None or left is None:
            return None
        sign = get_text(text, node.child_by_field_name("operator"))
        step = _STEPS.get(sign) if left.type == "identifier" else None
        return name, Change(step or 0, right if step is not None else None, right, True)
    if kind == "stepped":
        up = any(child.type == "++" for child in node.children)
        return get_text(text, node.child_by_field_name("argument")), Change(1 if up else -1, None, None, True, one=True)
    if kind in ("address", "output"):
        return get_text(text, node), Change(0, None, None, False)
    return None


def _find_root_name(text: bytes, node: Node | None) -> str | None:
    """Return the name that an assignment changes: for a part the structure, for an element of an array none."""
    while node is not None and node.type in ("parenthesized_expression", "field_expression"):
        node = node.child_by_field_name("argument") or next(iter(node.named_children), None)
    return get_text(text, node) if node is not None and node.type == "identifier" else None
