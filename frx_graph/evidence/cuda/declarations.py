"""Read the variables that a kernel declares, as one thread sees them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from tree_sitter import Node

from frx_graph.evidence.cuda.constants import TYPE_BYTES
from frx_graph.evidence.cuda.declarators import Declarator, parse_declarator, read_element_type
from frx_graph.evidence.cuda.places import cast_value, resolve_place
from frx_graph.evidence.cuda.polynomial import ZERO, make_constant
from frx_graph.evidence.cuda.source import Array, Space
from frx_graph.evidence.cuda.state import State, convert_to_number, evaluate
from frx_graph.evidence.cuda.structures import Structure, read_structure
from frx_graph.evidence.cuda.syntax import get_line, get_text
from frx_graph.evidence.cuda.values import ANYTHING, UNIFORM, Base, Pointer, Value, make_unknown_pointer

_TABLES = frozenset({"static", "constexpr"})
_SPECIFIERS = ("type_qualifier", "storage_class_specifier")


def declare_group(state: State, node: Node) -> bool:
    """Read `thread_block_tile<32> tile = tiled_partition<32>(block)`, which the grammar parses as two comparisons."""
    if node.type != "binary_expression" or len(node.children) != 3 or node.children[1].type != ">":
        return False
    left, right = node.children[0], node.children[2]
    if left.type != "binary_expression" or right.type != "assignment_expression" or left.children[1].type != "<":
        return False
    value = evaluate(state, right.child_by_field_name("right"))
    state.names[get_text(state.text, right.child_by_field_name("left"))] = value
    return True


def declare(state: State, node: Node) -> None:
    """Bind the names of a declaration to values and pointers, and record its arrays."""
    words = {get_text(state.text, child) if child.type in _SPECIFIERS else child.type for child in node.children}
    shared = "__shared__" in words
    element = read_element_type(state.text, node)
    for child in node.children_by_field_name("declarator"):
        found = parse_declarator(state.text, child)
        if found is None:
            # A structured binding, or a variable made by a constructor's call.
            name = get_text(state.text, child.child_by_field_name("declarator"))
            if name and child.type == "function_declarator":
                state.names[name] = state.symbols.create_symbol(element, ANYTHING)
            continue
        if (found.sizes and not found.pointers) or shared:
            # A static or constexpr table is one for all threads, in memory.
            space = Space.SHARED if shared else Space.CONSTANT if words & _TABLES else Space.LOCAL
            full = f"{element} *" if found.pointers and not found.rows else element
            _declare_array(state, node, found, full, space, words)
            if shared and not found.sizes and not found.pointers:
                _declare_members(state, node, found.name, element, words)
            if found.value is not None:
                evaluate(state, found.value)
            continue
        state.places.discard(found.name)
        at = resolve_place(state, found.value) if found.reference and found.value is not None else None
        if isinstance(at, Pointer):
            state.names[found.name] = at
            if not at.inner:
                state.places.add(found.name)
            continue
        value: Value
        match found.value:
            case Node(type="argument_list" | "initializer_list", named_children=[one]):
                value = evaluate(state, one)
            case Node(type="argument_list" | "initializer_list") | None:
                value = state.symbols.create_symbol(found.name, ANYTHING)
            case _:
                value = evaluate(state, found.value)
        if found.pointers and element != "auto":
            full = element + " *" * (found.pointers - 1)
            value = cast_value(state, f"{full} *", value) if isinstance(value, Pointer) else make_unknown_pointer(full)
            if "volatile" in words and isinstance(value, Pointer):
                value = replace(value, base=replace(value.base, volatile=True))
        state.names[found.name] = value


def _declare_members(state: State, node: Node, name: str, element: str, words: Container[str]) -> None:
    """Bind the fields of a shared structure or union, `name.field`. Fields of a union count as separate."""
    specifier = node.child_by_field_name("type")
    inline = None if specifier is None else read_structure(state.text, specifier, state.constants, state.structures)
    structure = inline or state.structures.get(element) or Structure((), None, None)
    for field in structure.fields:
        if field.pointer:
            continue
        member = f"{name}.{field.name}"
        inner = tuple(
            make_constant(size) if size is not None else state.symbols.create_symbol("size", UNIFORM)
            for size in field.sizes[1:]
        )
        base = Base(_name_array(state, node, member), Space.SHARED, "volatile" in words)
        state.names[member] = Pointer(base, ZERO, field.element, inner)
        if not field.sizes:
            state.places.add(member)


def _name_array(state: State, node: Node, name: str) -> str:
    """Return a name for the memory of an array: two functions, or two blocks, may each have their own `buffer`. Memory
    of a size that the launch gives is the same for all."""
    first = state.declared.setdefault(name, node.start_byte)
    return name if first == node.start_byte else f"{name}:{get_line(node)}"


def _declare_array(
    state: State, node: Node, found: Declarator, element: str, space: Space, words: Container[str]
) -> None:
    name = found.name
    values = [convert_to_number(state, evaluate(state, size)) if size is not None else None for size in found.sizes]
    counts = tuple(None if value is None else value.constant for value in values)
    size = TYPE_BYTES.get(element)
    for count in counts:
        size = None if size is None or count is None else size * count
    dynamic = "extern" in words and space is Space.SHARED
    state.arrays.append(Array(name, get_line(node), element, counts, None if dynamic else size, dynamic, space))
    base = Base(name if dynamic else _name_array(state, node, name), space, "volatile" in words)
    if not found.sizes and space is Space.SHARED:
        # A single variable: all threads see writes to it.
        state.names[name] = Pointer(base, ZERO, element)
        state.places.add(name)
        return
    inner = tuple(value if value is not None else state.symbols.create_symbol("size", UNIFORM) for value in values[1:])
    if space is Space.SHARED:
        state.pitches[base.name] = frozenset(
            one for size in inner for one in size.iterate_symbols() if one.isidentifier()
        )
    state.names[name] = Pointer(base, ZERO, element, inner)
