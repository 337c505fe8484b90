"""Read kernels: their signatures from the tree, and the effects of their bodies."""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping, Sequence

from tree_sitter import Node

from frx_graph.evidence.cuda import call_expressions, operators, places
from frx_graph.evidence.cuda.assignments import Changes
from frx_graph.evidence.cuda.constants import fold_constant
from frx_graph.evidence.cuda.declarators import parse_declarator, read_element_type
from frx_graph.evidence.cuda.polynomial import ZERO
from frx_graph.evidence.cuda.source import Kernel, Launch, LaunchBounds, Parameter, Space
from frx_graph.evidence.cuda.state import Evaluator, Inlining, State
from frx_graph.evidence.cuda.statements import inline_function, run_statement
from frx_graph.evidence.cuda.structures import Structure
from frx_graph.evidence.cuda.syntax import (
    NO_CODE,
    Tree,
    find_enclosing_nodes,
    find_function_declarator,
    find_nearest,
    get_line,
    get_text,
    list_parameters,
    split_arguments,
)
from frx_graph.evidence.cuda.values import UNIFORM, Base, Pointer
from frx_graph.evidence.record import record

EVALUATORS: Mapping[str, Evaluator] = {
    "identifier": operators.evaluate_name,
    "qualified_identifier": operators.evaluate_qualified_name,
    "number_literal": operators.evaluate_literal,
    "true": operators.evaluate_literal,
    "false": operators.evaluate_literal,
    "sizeof_expression": operators.evaluate_sizeof,
    "binary_expression": operators.evaluate_binary,
    "unary_expression": operators.evaluate_unary,
    "parenthesized_expression": operators.evaluate_parenthesized,
    "cast_expression": operators.evaluate_cast,
    "comma_expression": operators.evaluate_comma,
    "conditional_expression": operators.evaluate_conditional,
    "lambda_expression": operators.evaluate_lambda,
    "assignment_expression": operators.evaluate_assignment,
    "update_expression": operators.evaluate_update,
    "subscript_expression": places.evaluate_subscript,
    "field_expression": places.evaluate_field,
    "pointer_expression": places.evaluate_dereference,
    "call_expression": call_expressions.evaluate_call,
    "gnu_asm_expression": call_expressions.evaluate_assembly,
}


_WORD = re.compile(r"[A-Za-z_]\w*")
_GLOBAL = re.compile(rb"__global__(?<!\w__global__)\b")
_DEVICE = re.compile(rb"__device__(?<!\w__device__)\b")
_NAME = re.compile(rb"__global__[^;{}()]{0,500}?\b(\w{1,500})\s{0,100}\(", re.DOTALL)
_QUALIFIERS = ("type_qualifier", "storage_class_specifier")
_SPACES = {"__constant__": Space.CONSTANT, "__shared__": Space.SHARED, "__device__": Space.GLOBAL}
_HOLDERS = ("namespace_definition", "class_specifier", "struct_specifier")


@record
class Definition:
    """The definition of a kernel, and all nodes around it, from the nearest to the root."""

    node: Node
    holders: Sequence[Node]


def find_kernels(tree: Tree) -> tuple[list[Definition], list[str]]:
    """Return the definitions of the file's own kernels, and the names of those that could not be parsed. Declarations
    are neither."""
    found: dict[int, Definition] = {}
    unread = []
    places = list(_GLOBAL.finditer(tree.text, 0, tree.end))
    for at, holders in zip(places, find_enclosing_nodes(tree.root, (one.span() for one in places)), strict=True):
        if holders[0].type in NO_CODE:
            continue
        definition = find_nearest(holders, "function_definition", "declaration", "field_declaration", "ERROR")
        if definition is not None and definition.type == "function_definition":
            body = definition.child_by_field_name("body")
            if body is not None and at.start() < body.start_byte:
                outside = holders[holders.index(definition) + 1 :]
                found[definition.start_byte] = Definition(definition, outside)
                continue
        if definition is None or definition.type not in ("declaration", "field_declaration"):
            name = _NAME.match(tree.text, at.start())
            if name is not None:
                unread.append(name[1].decode("utf-8", "replace"))
    return list(found.values()), unread


def find_device_functions(tree: Tree) -> dict[str, Node]:
    """Return the `__device__` functions with a body, by name. If two share a name, both are left out, since only the
    compiler knows which one is called. One of the file itself comes before methods, functions in namespaces and equal
    ones in its headers."""
    found: dict[str, dict[int, Node]] = {}
    others: dict[str, dict[int, Node]] = {}
    places = list(_DEVICE.finditer(tree.text))
    for at, holders in zip(places, find_enclosing_nodes(tree.root, (one.span() for one in places)), strict=True):
        definition = find_nearest(holders, "function_definition", "comment", "declaration")
        if definition is None or definition.type != "function_definition":
            continue
        body = definition.child_by_field_name("body")
        if body is not None and at.start() < body.start_byte:
            name = get_function_name(tree.text, definition)
            inside = any(one.type in _HOLDERS for one in holders[holders.index(definition) + 1 :])
            weak = definition.start_byte >= tree.end and inside
            (others if weak else found).setdefault(name, {})[definition.start_byte] = definition
    for name, nodes in found.items():
        _drop_equal_ones(tree, nodes)
        others.pop(name, None)
    return {name: next(iter(nodes.values())) for name, nodes in (found | others).items() if len(nodes) == 1}


def _drop_equal_ones(tree: Tree, nodes: dict[int, Node]) -> None:
    """Drop functions of headers that are written as one of the file is."""
    own = {get_text(tree.text, node) for start, node in nodes.items() if start < tree.end}
    for start in [one for one in nodes if one >= tree.end]:
        if get_text(tree.text, nodes[start]) in own:
            del nodes[start]


def find_file_arrays(tree: Tree) -> dict[str, Pointer]:
    """Return the arrays that the file declares outside its functions: constant, device and dynamic shared memory."""
    found = {}
    waiting = [tree.root]
    while waiting:
        node = waiting.pop()
        for child in node.named_children:
            if child.type in ("namespace_definition", "linkage_specification", "declaration_list", "preproc_ifdef"):
                waiting.append(child)
            if child.type != "declaration":
                continue
            words = {get_text(tree.text, one) for one in child.children if one.type in _QUALIFIERS}
            words |= {one.type for one in child.children}
            space = next((space for word, space in _SPACES.items() if word in words), None)
            for one in child.children_by_field_name("declarator"):
                declared = parse_declarator(tree.text, one)
                if space is not None and declared is not None and len(declared.sizes) == 1:
                    base = Base(declared.name, space, "volatile" in words)
                    found[declared.name] = Pointer(base, ZERO, read_element_type(tree.text, child))
    return found


def read_kernel(
    tree: Tree,
    definition: Definition,
    constants: Mapping[str, int],
    functions: Mapping[str, Node],
    arrays: Mapping[str, Pointer],
    macros: frozenset[str],
    structures: Mapping[str, Structure],
    searched: dict[int, Changes],
    inlining: Inlining,
    launches: Mapping[str, Sequence[Launch]],
) -> Kernel:
    """Read one kernel with its threads' actions."""
    node = definition.node
    body = node.child_by_field_name("body")
    assert body is not None
    template = _read_template(tree.text, definition)
    numbers, width = _infer_instance(template, launches.get(get_function_name(tree.text, node), ()), constants)
    constants = {**constants, **numbers}
    state = State(tree.text, constants, functions, macros, EVALUATORS, inline_function, body, searched, inlining)
    state.structures = structures
    state.names.update(arrays)
    state.plane = tree.text.find(b"threadIdx.y", node.start_byte, node.end_byte) >= 0
    state.width = width
    state.generic = frozenset(
        name for kind, _, name in (one.partition(" ") for one in template) if kind in ("typename", "class")
    )
    parameters, rows = _read_parameters(tree.text, node)
    for one in parameters:
        if one.pointer and one.name not in rows:
            state.names[one.name] = Pointer(Base(one.name, Space.GLOBAL), ZERO, one.type)
        elif not one.pointer:
            state.names[one.name] = state.symbols.get_symbol(one.name, UNIFORM)
            state.symbols.given.add(one.name)
    run_statement(state, body)
    return Kernel(
        name=_get_full_name(tree.text, definition),
        line=get_line(node),
        template=template,
        parameters=tuple(parameters),
        launch_bounds=_read_launch_bounds(tree, node, constants),
        arrays=tuple(state.arrays),
        events=tuple(sorted(state.events, key=lambda event: event.step.order)),
        read=frozenset(_WORD.findall(tree.text[body.start_byte : body.end_byte].decode("utf-8", "replace"))),
        complete=state.complete and not node.has_error,
        made=state.symbols.parts,
        turns=state.symbols.turns,
    )


def _read_parameters(text: bytes, node: Node) -> tuple[list[Parameter], set[str]]:
    """Return all parameters, and the names of those whose elements are not contiguous."""
    found, rows = [], set()
    for child in list_parameters(node):
        declared = parse_declarator(text, child.child_by_field_name("declarator"))
        if declared is None:
            continue
        parameter = Parameter(
            name=declared.name,
            type=read_element_type(text, child) + " *" * max(0, declared.pointers - 1),
            pointer=declared.pointers > 0 or bool(declared.sizes),
            const=any(one.type == "type_qualifier" and get_text(text, one) == "const" for one in child.children),
            restrict=declared.restrict,
        )
        found.append(parameter)
        if declared.rows or len(declared.sizes) > 1:
            rows.add(declared.name)
    return found, rows


def get_function_name(text: bytes, node: Node) -> str:
    """Return the name of a definition, without namespaces and arguments."""
    inner = find_function_declarator(node)
    return get_text(text, inner.child_by_field_name("declarator")) if inner is not None else get_text(text, node)[:40]


def _get_full_name(text: bytes, definition: Definition) -> str:
    around = (get_text(text, one.child_by_field_name("name")) for one in definition.holders if one.type in _HOLDERS)
    names = [get_function_name(text, definition.node), *filter(None, around)]
    return "::".join(reversed(names))


def _read_template(text: bytes, definition: Definition) -> tuple[str, ...]:
    outer = next(iter(definition.holders), None)
    if outer is None or outer.type != "template_declaration":
        return ()
    parameters = outer.child_by_field_name("parameters")
    return tuple(get_text(text, child) for child in parameters.named_children) if parameters is not None else ()


def _read_launch_bounds(tree: Tree, node: Node, constants: Mapping[str, int]) -> LaunchBounds | None:
    body = node.child_by_field_name("body")
    end = body.start_byte if body is not None else node.end_byte
    # At the front of a definition, it is outside the node, after the previous one.
    begin = max((tree.text.rfind(mark, 0, node.start_byte) for mark in (b"}", b";", b"#", b">")), default=-1)
    places = list(tree.bounds)
    for at in places[bisect.bisect_right(places, begin) :][:1]:
        text = tree.bounds[at]
        if at < end:
            values = [fold_constant(part, constants) for part in split_arguments(text, template=True)]
            return LaunchBounds(text, values[0], values[1] if len(values) > 1 else None)
    return None


_NUMBER = re.compile(
    r"(?:const\s+)?(?:unsigned|int|long|short|size_t|u?int\d\d?_t|auto)\b[\w\s]*?\b(\w+)\s*(?:=\s*(.+))?$"
)
"""Return a numeric template parameter, and its default."""


def _infer_instance(
    template: Sequence[str], launches: Sequence[Launch], constants: Mapping[str, int]
) -> tuple[Mapping[str, int], int | None]:
    """Return the template's numbers, or their defaults, and the threads in x of a kernel, if all launches agree."""
    numbers = {}
    for at, one in enumerate(template):
        parameter = _NUMBER.match(one)
        if parameter is None:
            continue
        values = {_read_template_argument(launch, at, parameter[2], constants) for launch in launches}
        if not launches:
            values = {fold_constant(parameter[2], constants) if parameter[2] else None}
        value = values.pop() if len(values) == 1 else None
        if value is not None:
            numbers[parameter[1]] = value
    found = {launch.block.sizes[0] for launch in launches}
    return numbers, (found.pop() or None) if len(found) == 1 else None


def _read_template_argument(launch: Launch, at: int, otherwise: str | None, constants: Mapping[str, int]) -> int | None:
    listed = launch.kernel.partition("<")[2].rpartition(">")[0]
    arguments = split_arguments(listed, template=True) if listed else []
    text = arguments[at] if at < len(arguments) else otherwise
    return fold_constant(text, constants) if text else None
