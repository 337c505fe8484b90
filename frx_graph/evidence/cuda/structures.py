"""Read the structures and unions that a file defines: their fields, and the bytes that one takes.

Layouts follow the ABI of 64-bit Linux. What is not plain (base classes, virtual functions, bit fields, alignment by
hand, unknown types) has no size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tree_sitter import Node

from frx_graph.evidence.cuda.constants import TYPE_BYTES, fold_constant
from frx_graph.evidence.cuda.declarators import parse_declarator, read_element_type
from frx_graph.evidence.cuda.syntax import NO_CODE, Tree, find_enclosing_nodes, find_nearest, get_text
from frx_graph.evidence.record import record

_BEGINS = re.compile(rb"\b(?:struct|union)\s[^;(){}=]{0,200}\{")
_SPECIFIERS = ("struct_specifier", "union_specifier")
_NOT_PLAIN = re.compile(rb"\b(?:virtual|__align__|alignas|__builtin_align__|pragma)\b|:\s*\d+\s*;")
_POINTER_BYTES = 8
_ALIGNED = {**dict.fromkeys(("float3", "int3", "uint3"), 4), **dict.fromkeys(("char2", "uchar2"), 2)}
"""Alignment of types for which it is not the size."""


@record
class Field:
    """One field. `sizes` has the sizes of an array; an entry is None unless it is a number."""

    name: str
    element: str
    sizes: tuple[int | None, ...]
    pointer: bool


@record
class Structure:
    """One structure or union; `bytes` and `alignment` are None if its layout is not plain."""

    fields: tuple[Field, ...]
    bytes: int | None
    alignment: int | None


def find_structures(tree: Tree, constants: Mapping[str, int]) -> dict[str, Structure]:
    """Return the named structures of the headers, then of the file. Of two with one name, neither counts."""
    found: dict[str, Structure] = {}
    twice = set()
    for node in (*_find_specifiers(tree, tree.end, len(tree.text)), *_find_specifiers(tree, 0, tree.end)):
        name = get_text(tree.text, node.child_by_field_name("name"))
        if not name:
            continue
        structure = read_structure(tree.text, node, constants, found)
        if structure is not None:
            if name in found:
                twice.add(name)
            found[name] = structure
    return {name: structure for name, structure in found.items() if name not in twice}


def _find_specifiers(tree: Tree, start: int, end: int) -> Iterator[Node]:
    places = (one.span() for one in _BEGINS.finditer(tree.text, start, end))
    for holders in find_enclosing_nodes(tree.root, places):
        node = find_nearest(holders, *_SPECIFIERS) if holders[0].type not in NO_CODE else None
        if node is not None:
            yield node


def read_structure(
    text: bytes, node: Node, constants: Mapping[str, int], known: Mapping[str, Structure]
) -> Structure | None:
    """Read a definition; None for a mere name. `known` are structures that were defined before."""
    body = node.child_by_field_name("body")
    if body is None or node.type not in _SPECIFIERS:
        return None
    fields = tuple(_iterate_fields(text, body, constants))
    plain = _NOT_PLAIN.search(text, node.start_byte, node.end_byte) is None
    based = any(child.type == "base_class_clause" for child in node.children)
    sizes = [_measure_field(field, known) for field in fields]
    if based or not plain or not sizes or None in sizes:
        return Structure(fields, None, None)
    at, alignment = 0, 1
    for size, own in (one for one in sizes if one is not None):
        begin = 0 if node.type == "union_specifier" else -(-at // own) * own
        at = max(at, begin + size)
        alignment = max(alignment, own)
    return Structure(fields, -(-at // alignment) * alignment, alignment)


def _iterate_fields(text: bytes, body: Node, constants: Mapping[str, int]) -> Iterator[Field]:
    for child in body.named_children:
        if child.type != "field_declaration":
            continue
        element = read_element_type(text, child)
        for one in child.children_by_field_name("declarator"):
            declared = parse_declarator(text, one)
            if declared is not None:
                sizes = tuple(
                    None if size is None else fold_constant(get_text(text, size), constants) for size in declared.sizes
                )
                yield Field(declared.name, element, sizes, pointer=declared.pointers > 0 or declared.reference)


def _measure_field(field: Field, known: Mapping[str, Structure]) -> tuple[int, int] | None:
    """Return the bytes and the alignment of a field; None if unknown."""
    inner = known.get(field.element)
    if field.pointer:
        size: int | None = _POINTER_BYTES
        alignment: int | None = _POINTER_BYTES
    elif inner is not None:
        size, alignment = inner.bytes, inner.alignment
    else:
        size = TYPE_BYTES.get(field.element)
        alignment = _ALIGNED.get(field.element, size)
    for count in field.sizes:
        size = None if size is None or count is None else size * count
    return None if size is None or alignment is None else (size, alignment)
