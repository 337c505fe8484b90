"""Declarators: which name they give to what, through pointers, references and arrays."""

from __future__ import annotations

from tree_sitter import Node

from frx_graph.evidence.cuda.constants import plain_type
from frx_graph.evidence.cuda.record import record
from frx_graph.evidence.cuda.source import Parameter
from frx_graph.evidence.cuda.syntax import said

_DEEPEST = 20


@record
class Declarator:
    """`name` with `pointers` stars; `sizes` are the expressions in brackets, None for an empty one."""

    name: str
    pointers: int
    reference: bool
    sizes: tuple[Node | None, ...]
    value: Node | None
    restrict: bool
    rows: bool
    """`(*name)[size]`: a pointer to an array."""


def declarator(text: bytes, node: Node | None) -> Declarator | None:
    """None for what declares no variable."""
    pointers, reference, restrict, rows = 0, False, False, False
    sizes: list[Node | None] = []
    value = None
    for _ in range(_DEEPEST):
        if node is None:
            return None
        kind = node.type
        if kind in ("identifier", "field_identifier"):
            # The outermost brackets are the last ones.
            return Declarator(said(text, node), pointers, reference, tuple(reversed(sizes)), value, restrict, rows)
        if kind == "init_declarator":
            value = node.child_by_field_name("value")
        elif kind == "pointer_declarator":
            pointers += 1
            restrict = restrict or any(said(text, child).startswith("__restrict") for child in node.children)
            rows = rows or bool(sizes)
        elif kind == "reference_declarator":
            reference = True
            node = next((child for child in node.named_children), None)
            continue
        elif kind == "array_declarator":
            sizes.append(node.child_by_field_name("size"))
        elif kind == "parenthesized_declarator":
            node = next((child for child in node.named_children), None)
            continue
        else:
            return None
        node = node.child_by_field_name("declarator")
    return None


def element_type(text: bytes, node: Node) -> str:
    """The type that a declaration begins with, without qualifiers."""
    words = [said(text, child) for child in node.children if child.type in _TYPES]
    return plain_type(" ".join(words))


def parameter(text: bytes, node: Node, found: Declarator) -> Parameter:
    """A kernel's parameter, of which `found` is the declarator."""
    qualifiers = [said(text, child) for child in node.children if child.type == "type_qualifier"]
    return Parameter(
        name=found.name,
        type=element_type(text, node) + " *" * max(0, found.pointers - 1),
        pointer=found.pointers > 0 or bool(found.sizes),
        const="const" in qualifiers,
        restrict=found.restrict,
    )


_TYPES = frozenset(
    [
        "primitive_type",
        "sized_type_specifier",
        "type_identifier",
        "qualified_identifier",
        "template_type",
        "placeholder_type_specifier",
        "dependent_type",
        "struct_specifier",
        "decltype",
    ]
)
