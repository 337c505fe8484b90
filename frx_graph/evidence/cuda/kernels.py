"""Kernels: their signatures from the tree, and what their bodies do."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tree_sitter import Node

from frx_graph.evidence.cuda.constants import fold
from frx_graph.evidence.cuda.declarations import declarator, element_type, parameter
from frx_graph.evidence.cuda.polynomial import ZERO
from frx_graph.evidence.cuda.source import Kernel, LaunchBounds, Parameter, Space
from frx_graph.evidence.cuda.state import State
from frx_graph.evidence.cuda.statements import inline, run
from frx_graph.evidence.cuda.syntax import Tree, enclosing, line_of, said
from frx_graph.evidence.cuda.values import UNIFORM, Base, Pointer

_WORD = re.compile(r"[A-Za-z_]\w*")
_GLOBAL = re.compile(rb"\b__global__\b")
_DEVICE = re.compile(rb"\b__device__\b")
_NAME = re.compile(rb"__global__[^;{}()]*?\b(\w+)\s*\(", re.DOTALL)
_HOLDERS = ("namespace_definition", "class_specifier", "struct_specifier")


def kernel_nodes(tree: Tree) -> tuple[list[Node], list[str]]:
    """The definitions of kernels, and the names of those that could not be read as one. Declarations are neither."""
    found: dict[int, Node] = {}
    unread = []
    for at in _GLOBAL.finditer(tree.text):
        node = tree.root.descendant_for_byte_range(at.start(), at.end())
        if node is None or node.type in ("comment", "string_content", "preproc_arg", "raw_string_content"):
            continue
        definition = enclosing(node, "function_definition", "declaration", "field_declaration", "ERROR")
        if definition is not None and definition.type == "function_definition":
            body = definition.child_by_field_name("body")
            if body is not None and at.start() < body.start_byte:
                found[definition.start_byte] = definition
                continue
        if definition is None or definition.type not in ("declaration", "field_declaration"):
            name = _NAME.match(tree.text, at.start())
            if name is not None:
                unread.append(name[1].decode("utf-8", "replace"))
    return list(found.values()), unread


def device_functions(tree: Tree) -> dict[str, Node]:
    """The file's `__device__` functions with a body, by name; of two with one name neither, since which is called is
    the compiler's to tell."""
    found: dict[str, list[Node]] = {}
    for at in _DEVICE.finditer(tree.text):
        node = tree.root.descendant_for_byte_range(at.start(), at.end())
        definition = enclosing(node, "function_definition", "comment", "declaration") if node is not None else None
        if definition is None or definition.type != "function_definition":
            continue
        body = definition.child_by_field_name("body")
        if body is not None and at.start() < body.start_byte:
            name = _function_name(definition)
            nodes = found.setdefault(name, [])
            if definition not in nodes:
                nodes.append(definition)
    return {name: nodes[0] for name, nodes in found.items() if len(nodes) == 1}


def file_arrays(tree: Tree) -> dict[str, Pointer]:
    """What the file declares beside its functions that kernels can reach: constant and device memory, and shared memory
    that a launch sizes."""
    found = {}
    waiting = [tree.root]
    while waiting:
        node = waiting.pop()
        for child in node.named_children:
            if child.type in ("namespace_definition", "linkage_specification", "declaration_list", "preproc_ifdef"):
                waiting.append(child)
            if child.type != "declaration":
                continue
            words = {said(one) for one in child.children} | {one.type for one in child.children}
            space = next((space for word, space in _SPACES.items() if word in words), None)
            for one in child.children_by_field_name("declarator"):
                declared = declarator(one)
                if space is not None and declared is not None and len(declared.sizes) == 1:
                    base = Base(declared.name, space, "volatile" in words)
                    found[declared.name] = Pointer(base, ZERO, element_type(child))
    return found


_SPACES = {"__constant__": Space.CONSTANT, "__shared__": Space.SHARED, "__device__": Space.GLOBAL}


def read_kernel(
    tree: Tree,
    node: Node,
    constants: Mapping[str, int],
    functions: Mapping[str, Node],
    arrays: Mapping[str, Pointer],
    macros: frozenset[str],
) -> Kernel:
    """One kernel, with everything that its threads do."""
    state = State(constants, functions, macros, inline)
    state.names.update(arrays)
    state.plane = b"threadIdx.y" in (node.text or b"")
    state.generic = frozenset(
        name for kind, _, name in (one.partition(" ") for one in _template(node)) if kind in ("typename", "class")
    )
    parameters, rows = _parameters(node)
    for one in parameters:
        if one.pointer and one.name not in rows:
            state.names[one.name] = Pointer(Base(one.name, Space.GLOBAL), ZERO, one.type)
        elif not one.pointer:
            state.names[one.name] = state.symbols.same(one.name, UNIFORM)
            state.symbols.given.add(one.name)
    body = node.child_by_field_name("body")
    run(state, body)
    events = sorted(state.events, key=lambda event: event.step.order)
    return Kernel(
        name=_full_name(node),
        line=line_of(node),
        template=_template(node),
        parameters=tuple(parameters),
        launch_bounds=_launch_bounds(tree, node, constants),
        arrays=tuple(state.arrays),
        events=tuple(events),
        read=frozenset(_WORD.findall(said(body))),
        complete=not node.has_error,
    )


def _parameters(node: Node) -> tuple[list[Parameter], set[str]]:
    """All parameters, and the names of those whose elements are not simply one behind the other."""
    inner: Node | None = node.child_by_field_name("declarator")
    while inner is not None and inner.type != "function_declarator":
        inner = inner.child_by_field_name("declarator")
    listed = inner.child_by_field_name("parameters") if inner is not None else None
    found, rows = [], set()
    for child in listed.named_children if listed is not None else ():
        one = parameter(child) if child.type in ("parameter_declaration", "optional_parameter_declaration") else None
        if one is not None:
            found.append(one)
            said_by = declarator(child.child_by_field_name("declarator"))
            if said_by is not None and (said_by.rows or len(said_by.sizes) > 1):
                rows.add(one.name)
    return found, rows


def _function_name(node: Node) -> str:
    inner: Node | None = node.child_by_field_name("declarator")
    while inner is not None and inner.type != "function_declarator":
        inner = inner.child_by_field_name("declarator") or next(iter(inner.named_children), None)
    return said(inner.child_by_field_name("declarator")) if inner is not None else said(node)[:40]


def _full_name(node: Node) -> str:
    names = [_function_name(node)]
    outer = node.parent
    while outer is not None:
        if outer.type in _HOLDERS:
            name = said(outer.child_by_field_name("name"))
            names += [name] if name else []
        outer = outer.parent
    return "::".join(reversed(names))


def _template(node: Node) -> tuple[str, ...]:
    outer = node.parent
    if outer is None or outer.type != "template_declaration":
        return ()
    parameters = outer.child_by_field_name("parameters")
    return tuple(said(child) for child in parameters.named_children) if parameters is not None else ()


def _launch_bounds(tree: Tree, node: Node, constants: Mapping[str, int]) -> LaunchBounds | None:
    body = node.child_by_field_name("body")
    end = body.start_byte if body is not None else node.end_byte
    # Before all else of a definition it stands outside of its node, behind what stands before.
    begin = max((tree.text.rfind(mark, 0, node.start_byte) for mark in (b"}", b";", b"#", b">")), default=-1)
    for at, text in tree.bounds.items():
        if begin < at < end:
            parts = _split(text)
            values = [fold(part, constants) for part in parts]
            return LaunchBounds(text, values[0], values[1] if len(values) > 1 else None)
    return None


def _split(text: str) -> list[str]:
    """The arguments in a list, of which each may have commas in parentheses."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += {"(": 1, "<": 1, ")": -1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]
