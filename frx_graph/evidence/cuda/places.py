"""Read places in memory: the target of a subscript, a star, an arrow or a reference, read or written."""

from __future__ import annotations

import math
from dataclasses import replace

from tree_sitter import Node

from frx_graph.evidence.cuda.constants import TYPE_BYTES, strip_qualifiers
from frx_graph.evidence.cuda.polynomial import ZERO, Polynomial, make_constant, make_symbol
from frx_graph.evidence.cuda.source import Use
from frx_graph.evidence.cuda.state import DEEPEST, State, convert_to_number, evaluate
from frx_graph.evidence.cuda.syntax import get_text
from frx_graph.evidence.cuda.values import (
    ANYTHING,
    BUILT_IN,
    INDEX_OBJECTS,
    UNIFORM,
    Pointer,
    Symbols,
    Value,
    make_unknown_pointer,
    scale_index,
)


def resolve_place(state: State, node: Node | None) -> Pointer | str | None:
    """Return the place that an assignment writes to: an element, a name, or None if unknown."""
    if node is None or state.depth >= DEEPEST:
        return None
    state.depth += 1
    found = _resolve_place(state, node)
    state.depth -= 1
    return found


def _resolve_place(state: State, node: Node) -> Pointer | str | None:
    inner = node.child_by_field_name("argument")
    match node.type:
        case "identifier":
            name = get_text(state.text, node)
            found = state.names.get(name) if name in state.places else None
            return found if isinstance(found, Pointer) else name
        case "subscript_expression":
            return _resolve_element(state, node)
        case "parenthesized_expression":
            return resolve_place(state, next(iter(node.named_children), None))
        case "pointer_expression" if node.children[0].type == "*":
            found = evaluate(state, inner)
            return found if isinstance(found, Pointer) else None
        case "field_expression" if inner is not None and inner.type != "identifier":
            place = resolve_place(state, inner)
            return place if isinstance(place, Pointer) else None
        case "field_expression" if inner is not None and node.children[1].type == "->":
            return _get_target(evaluate(state, inner))
        case "field_expression" if isinstance(member := state.names.get(get_text(state.text, node)), Pointer):
            return member
        case "field_expression" if (member := _find_member(state, node, inner)) is not None:
            return member
        case "field_expression":
            # From here on, only one part of a structure is known.
            name = get_text(state.text, inner)
            state.names[name] = state.symbols.create_symbol(name, ANYTHING)
        case "call_expression":
            # reinterpret_cast<float4&>(x[i]) and similar.
            arguments = node.child_by_field_name("arguments")
            cast = get_text(state.text, node.child_by_field_name("function"))
            if arguments is not None and "cast" in cast:
                place = resolve_place(state, next(iter(arguments.named_children), None))
                whole = state.names.get(place) if isinstance(place, str) else None
                if isinstance(whole, Pointer) and whole.base.name == place:
                    # reinterpret_cast<Own&>(x) of an array: the structure begins where the array does.
                    return Pointer(whole.base, whole.offset, cast[cast.find("<") + 1 : cast.rfind("&")].strip())
                return place
    return None


def _find_member(state: State, node: Node, owner: Node | None) -> Pointer | None:
    """Return the place of `a.b` where `a` is a reference to memory. Fields count as separate."""
    name = get_text(state.text, owner)
    whole = state.names.get(name) if name in state.places else None
    if not isinstance(whole, Pointer) or whole.inner:
        return None
    field = get_text(state.text, node.child_by_field_name("field"))
    return Pointer(replace(whole.base, name=f"{whole.base.name}.{field}"), whole.offset, "?")


def _get_target(value: Value) -> Pointer:
    return value if isinstance(value, Pointer) else make_unknown_pointer("?")


def evaluate_subscript(state: State, node: Node) -> Value:
    """`a[i]`."""
    return load_value(state, node, _resolve_element(state, node))


def _resolve_element(state: State, node: Node) -> Pointer:
    """Return the place of `a[i]` without reading it; a row of an array is a pointer with fewer dimensions."""
    base = evaluate(state, node.child_by_field_name("argument"))
    indices = node.child_by_field_name("indices")
    index = convert_to_number(state, evaluate(state, next(iter(indices.named_children), None) if indices else None))
    target = _get_target(base)
    offset = target.offset + scale_index(index, target.inner)
    if not offset.fits:
        offset = state.symbols.create_symbol("offset", state.symbols.get_varies(offset))
    return Pointer(target.base, offset, target.element, target.inner)


def load_value(state: State, node: Node, at: Pointer) -> Value:
    """Return the value at a place; for a row of an array, a pointer to the row."""
    if at.inner:
        return Pointer(at.base, at.offset, at.element, at.inner[1:])
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
    member = state.names.get(text)
    if isinstance(member, Pointer):
        return state.record_access(node, member, Use.READ) if text in state.places else member
    sign = node.children[1].type
    if sign == "->":
        return state.record_access(node, _get_target(evaluate(state, inner)), Use.READ)
    if inner is not None and inner.type == "identifier" and sign == ".":
        if (own := _find_member(state, node, inner)) is not None:
            return state.record_access(node, own, Use.READ)
        value = state.names.get(owner)
        if not isinstance(value, Polynomial):
            return state.symbols.get_symbol(f"{owner}.{name}", UNIFORM if value is None else ANYTHING)
        part = state.symbols.get_derived_symbol(f"({value}).{name}", state.symbols.get_varies(value))
        if owner in state.symbols.given:
            state.symbols.given.update(part.iterate_symbols())
        return part
    if owner.endswith((".thread_index()", ".group_index()")):
        index = "threadIdx" if owner.endswith("thread_index()") else "blockIdx"
        return state.symbols.get_symbol(f"{index}.{name}", ANYTHING)
    at = resolve_place(state, inner)
    if isinstance(at, Pointer):
        return state.record_access(node, at, Use.READ)
    value = state.names.get(at) if at is not None else None
    return state.symbols.create_symbol(name, ANYTHING if value is None else state.symbols.get_varies(value))


def evaluate_dereference(state: State, node: Node) -> Value:
    """`*p` and `&a`."""
    inner = node.child_by_field_name("argument")
    if node.children[0].type == "*":
        found = evaluate(state, inner)
        if isinstance(found, Pointer):
            return load_value(state, node, found)
        return state.symbols.create_symbol("at", ANYTHING)
    at = resolve_place(state, inner)
    if isinstance(at, Pointer):
        return at
    if at is not None and isinstance(state.names.get(at), Polynomial):
        # A function that receives the address may change it.
        state.names[at] = state.symbols.create_symbol(at, ANYTHING)
    return make_unknown_pointer("?")


def _count_elements(symbols: Symbols, offset: Polynomial, size: int) -> Polynomial:
    """Return an offset in bytes as elements of `size` bytes. A pitch in bytes is a whole number of them, since pointers
    are aligned to their elements: `pitch * y` is `pitch / 4 * y`."""
    counted = ZERO
    for names, times in offset.terms.items():
        rest = size // math.gcd(times, size)
        at = next((at for at, name in enumerate(names) if not symbols.varies[name] and ":" not in name), None)
        if rest > 1 and at is None:
            return symbols.divide(offset, make_constant(size))
        term = Polynomial({names: times * rest // size})
        if rest > 1 and at is not None:
            pitch = symbols.divide(make_symbol(names[at]), make_constant(rest))
            term = Polynomial({names[:at] + names[at + 1 :]: times * rest // size}) * pitch
        counted += term
    return counted


def cast_value(state: State, type_text: str, value: Value) -> Value:
    """Convert a value to another type. Pointers keep their target, counted in the new element."""
    plain = strip_qualifiers(type_text)
    if not isinstance(value, Pointer) or not plain.endswith(("*", "&")):
        return value
    element, offset, symbols = plain[:-1].strip(), value.offset, state.symbols
    if element == "void":
        # It has no size to count in.
        return value
    if offset.terms and element != value.element:
        old, new = TYPE_BYTES.get(value.element), TYPE_BYTES.get(element)
        if old is not None and new is not None:
            offset = _count_elements(symbols, offset * make_constant(old), new)
        elif symbols.get_varies(offset):
            offset = symbols.create_symbol("cast", ANYTHING)
        elif any("#" in one or one.startswith("loop:") for one in offset.iterate_symbols()):
            offset = symbols.create_symbol("cast", UNIFORM)
        else:
            # The beginning of an array in memory that several share.
            offset = symbols.get_derived_symbol(f"({offset})as({element})", UNIFORM)
    return Pointer(value.base, offset, element)
