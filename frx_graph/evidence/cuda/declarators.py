"""Parse declarators: the name that a declaration gives, with its stars, its brackets and its value."""

from __future__ import annotations

import re

from tree_sitter import Node

from frx_graph.evidence.cuda.constants import strip_qualifiers
from frx_graph.evidence.cuda.syntax import get_text
from frx_graph.evidence.record import record

_DEEPEST = 20
_TYPE = re.compile(
    r"(?:primitive|template|dependent)_type|(?:sized_type|placeholder_type|struct)_specifier|(?:type|qualified)_identifier"
    r"|decltype"
)
"""Nodes that name a type."""


@record
class Declarator:
    """A declarator: `name` with `pointers` stars. `sizes` are the expressions in brackets, None for an empty one."""

    name: str
    pointers: int
    reference: bool
    sizes: tuple[Node | None, ...]
    value: Node | None
    restrict: bool
    rows: bool
    """`(*name)[size]`: a pointer to an array."""


def parse_declarator(text: bytes, node: Node | None) -> Declarator | None:
    """Parse a declarator; None if it declares no variable."""
    pointers, reference, restrict, rows = 0, False, False, False
    sizes: list[Node | None] = []
    value = None
    for _ in range(_DEEPEST):
        if node is None:
            return None
        kind = node.type
        if kind in ("identifier", "field_identifier"):
            # The outermost brackets are the last ones.
            return Declarator(get_text(text, node), pointers, reference, tuple(reversed(sizes)), value, restrict, rows)
        if kind == "init_declarator":
            value = node.child_by_field_name("value")
        elif kind == "pointer_declarator":
            pointers += 1
            restrict = restrict or any(get_text(text, child).startswith("__restrict") for child in node.children)
            rows = rows or bool(sizes)
        elif kind == "array_declarator":
            sizes.append(node.child_by_field_name("size"))
        elif kind not in ("reference_declarator", "parenthesized_declarator"):
            return None
        reference = reference or kind == "reference_declarator"
        # References and parentheses have their declarator in no field.
        node = node.child_by_field_name("declarator") or next(iter(node.named_children), None)
    return None


def read_element_type(text: bytes, node: Node) -> str:
    """Return the type that a declaration begins with, without qualifiers."""
    words = [get_text(text, child) for child in node.children if _TYPE.fullmatch(child.type)]
    return strip_qualifiers(" ".join(words))
