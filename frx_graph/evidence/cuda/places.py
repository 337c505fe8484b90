"""Read places in memory: the target of a subscript, a star, an arrow or a reference, read or written."""

from __future__ import annotations

from dataclasses import replace

from tree_sitter import Node

from frx_graph.evidence.cuda.constants import TYPE_BYTES, strip_qualifiers
from frx_graph.evidence.cuda.polynomial import Polynomial, make_constant, make_symbol
from frx_graph.evidence.cuda.source import Space, Use
from frx_graph.evidence.cuda.state import DEEPEST, State, convert_to_number, evaluate
from frx_graph.evidence.cuda.syntax import get_text
from frx_graph.evidence.cuda.values import (
    ANYTHING,
    BUILT_IN,
    INDEX_OBJECTS,
    UNIFORM,
    Pointer,
    Value,
    make_unknown_pointer,
    scale_index,
)


def resolve_place(state: State, node: Node) -> Pointer | str | None:
    """Return the place that an assignment writes to: an element, a name, or None if unknown."""
    if state.depth >= DEEPEST:
        return None
    state.depth += 1
    found = _resolve_place(state, node)
    state.depth -= 1
    return found


def _resolve_place(state: State, node: Node) -> Pointer | str | None:
    kind = node.type
    if kind == "identifier":
        name = get_text(state.text, node)
        return find_scalar(state, name) or name
    if kind == "subscript_expression":
        return _resolve_element(state, node)
    if kind == "parenthesized_expression":
        return resolve_place(state, node.named_children[0]) if node.named_children else None
    if kind == "pointer_expression" and node.children[0].type == "*":
        found = evaluate(state, node.child_by_field_name("argument"))
        return found if isinstance(found, Pointer) else None
    if kind == "field_expression":
        inner = node.child_by_field_name("argument")
        if inner is None or inner.type == "identifier":
            if inner is not None and node.children[1].type == "->":
                found = evaluate(state, inner)
                return found if isinstance(found, Pointer) else make_unknown_pointer("?")
            # From here on, only one part of a structure is known.
            name = get_text(state.text, inner)
            state.names[name] = state.symbols.create_symbol(name, ANYTHING)
            return None
        found_place = resolve_place(state, inner)
        return found_place if isinstance(found_place, Pointer) else None
    if kind == "call_expression":
        # reinterpret_cast<float4&>(x[i]) and similar.
        arguments = node.child_by_field_name("arguments")
        function = get_text(state.text, node.child_by_field_name("function"))
        if arguments is not None and "cast" in function and arguments.named_children:
            return resolve_place(state, arguments.named_children[0])
    return None


def store_value(state: State, node: Node, at: Pointer | str | None, value: Value) -> None:
    """Store a value in the environment or in memory."""
    if isinstance(at, str):
        state.names[at] = value
    elif at is not None:
        state.record_access(node, at, Use.WRITE)
        if at.base.space is Space.LOCAL:
            state.note_source(at.base.name, value)


def find_scalar(state: State, name: str) -> Pointer | None:
    """Return the place that a name refers to."""
    if name not in state.places:
        return None
    found = state.names.get(name)
    return found if isinstance(found, Pointer) else None


def evaluate_subscript(state: State, node: Node) -> Value:
    """`a[i]`."""
    return load_value(state, node, _resolve_element(state, node))


def _resolve_element(state: State, node: Node) -> Pointer:
    """Return the place of `a[i]` without reading it; a row of an array is a pointer with fewer dimensions."""
    base = evaluate(state, node.child_by_field_name("argument"))
    indices = node.child_by_field_name("indices")
    index = convert_to_number(
        state, evaluate(state, indices.named_child(0) if indices and indices.named_child_count else None)
    )
    if not isinstance(base, Pointer):
        base = make_unknown_pointer("?")
    if base.inner:
        index = scale_index(index, base.inner)
    offset = base.offset + index
    if not offset.fits:
        offset = state.symbols.create_symbol("offset", state.symbols.get_varies(offset))
    return Pointer(base.base, offset, base.element, base.inner)


def load_value(state: State, node: Node, at: Pointer) -> Value:
    """Return the value at a place; for a row of an array, a pointer to the row."""
    if at.inner:
        return replace(at, inner=at.inner[1:])
    if at.element.endswith("*"):
        state.record_access(node, at, Use.READ)
        return make_unknown_pointer(at.element[:-1].strip())
    return state.record_access(node, at, Use.READ)


def evaluate_field(state: State, node: Node) -> Value:
    """`a.b` and `a->b`."""
    text = get_text(state.text, node)
    if text in BUILT_IN and text.partition(".")[0] not in state.names:
        return make_symbol(text)
    inner, name = node.child_by_field_name("argument"), get_text(state.text, node.child_by_field_name("field"))
    owner = get_text(state.text, inner)
    if owner in INDEX_OBJECTS and owner not in state.names:
        return state.symbols.get_symbol(f"{owner}.{name}", ANYTHING)
    arrow = node.children[1].type
    if inner is not None and inner.type == "identifier" and arrow == ".":
        value = state.names.get(owner)
        if isinstance(value, Polynomial):
            part = state.symbols.get_derived_symbol(f"({value}).{name}", state.symbols.get_varies(value))
            if owner in state.symbols.given:
                state.symbols.given.update(part.iterate_symbols())
            return part
        return state.symbols.get_symbol(f"{owner}.{name}", UNIFORM if value is None else ANYTHING)
    if arrow == "->":
        found = evaluate(state, inner)
        if isinstance(found, Pointer):
            return state.record_access(node, found, Use.READ)
        return state.record_access(node, make_unknown_pointer("?"), Use.READ)
    if inner is not None and owner.endswith((".thread_index()", ".group_index()")):
        return state.symbols.get_symbol(
            f"{'threadIdx' if owner.endswith('thread_index()') else 'blockIdx'}.{name}", ANYTHING
        )
    if inner is not None:
        at = resolve_place(state, inner)
        if isinstance(at, Pointer):
            return state.record_access(node, at, Use.READ)
        value = state.names.get(at) if isinstance(at, str) else None
        return state.symbols.create_symbol(name, ANYTHING if value is None else state.symbols.get_varies(value))
    return state.symbols.create_symbol(name, ANYTHING)


def evaluate_dereference(state: State, node: Node) -> Value:
    """`*p` and `&a`."""
    inner = node.child_by_field_name("argument")
    if node.children[0].type == "*":
        found = evaluate(state, inner)
        return (
            load_value(state, node, found)
            if isinstance(found, Pointer)
            else state.symbols.create_symbol("at", ANYTHING)
        )
    if inner is None:
        return state.symbols.create_symbol("address", ANYTHING)
    at = resolve_place(state, inner)
    if isinstance(at, Pointer):
        return at
    if isinstance(at, str) and isinstance(state.names.get(at), Polynomial):
        # A function that receives the address may change it.
        state.names[at] = state.symbols.create_symbol(at, ANYTHING)
    return make_unknown_pointer("?")


def cast_value(state: State, type_text: str, value: Value) -> Value:
    """Convert a value to another type. Pointers keep their target, counted in the new element."""
    if not isinstance(value, Pointer):
        return value
    plain = strip_qualifiers(type_text)
    if not plain.endswith(("*", "&")):
        return value
    element = plain[:-1].strip()
    if value.offset.terms and element != value.element:
        old, new = TYPE_BYTES.get(value.element), TYPE_BYTES.get(element)
        if old is None or new is None:
            fixed = not any("#" in one or one.startswith("loop:") for one in value.offset.iterate_symbols())
            if fixed and not state.symbols.get_varies(value):
                # The beginning of an array in memory that several share.
                offset = state.symbols.get_derived_symbol(f"({value.offset})as({element})", UNIFORM)
            else:
                offset = state.symbols.create_symbol("cast", ANYTHING if state.symbols.get_varies(value) else UNIFORM)
        else:
            offset = state.symbols.divide(value.offset * make_constant(old), make_constant(new))
        return Pointer(value.base, offset, element)
    return Pointer(value.base, value.offset, element)
