"""Find Inductor's scheduled kernels that only move data from one layout to another.

A kernel body copies if it consists of one load and one store. It is a layout copy if the two walk memory in different
orders, or if the program asked for the copy. A copy whose result no other kernel reads never reaches memory. A copy
that is fused with the source's writer, or with another reader, costs only the write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from frx_graph.capture.call_site import (
    CallSite,
    get_class_name,
    parse_module_path,
    parse_stack_trace,
    resolve_module_site,
)
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.operator_families import FOLDED_PRODUCTS
from frx_graph.measure.operators.aten_copies import WEIGHT_OPERAND
from frx_graph.measure.operators.operator_measurement import ObservedCopy, ObservedKind, ObservedRole
from frx_graph.support.torch_internals import (
    ExternKernelSchedulerNode,
    ForeachKernelSchedulerNode,
    MemoryUsageType,
    OpOverload,
    OutputNode,
    SchedulerNode,
    V,
    get_loop_body,
)

_MOVES = frozenset({"load", "store", "get_index"})
_ASKED_FOR = frozenset({"aten.clone", "aten.contiguous", "aten.copy", "prims.clone"})
"""Operators that Inductor's decompositions leave of explicit copies; `copy` is a functionalised `copy_`."""


@dataclass(frozen=True, slots=True)
class ExternCall:
    """A library call of the generated code: the operator, and where it comes from."""

    operator: str
    site: CallSite


@dataclass(frozen=True)
class GeneratedGraph:
    """The copies and library calls of one compiled graph. `copies` are keyed by the buffer that they write, `externs`
    by the buffers that they make."""

    copies: Mapping[str, ObservedCopy]
    externs: Mapping[str, ExternCall]


def read_schedule(groups: Sequence[Any], phase: Phase) -> GeneratedGraph:
    """The copies and library calls of a graph, from Inductor's schedule after fusion; one group is one kernel.

    Runs inside Inductor's compilation of that graph.
    """
    kernels = [nodes for group in groups for nodes in _split_kernels(group)]
    makers = {output.get_name(): node for nodes in kernels for node in nodes for output in node.get_outputs()}
    copies: dict[str, ObservedCopy] = {}
    for nodes in kernels:
        for node in nodes:
            if isinstance(node, SchedulerNode):
                copies.update(_find_copy(node, nodes, makers, phase))
    externs = {name: _find_origin(node) for name, node in makers.items() if isinstance(node, ExternKernelSchedulerNode)}
    calls = {name: ExternCall(_get_operator_name(origin), find_call_site(origin)) for name, origin in externs.items()}
    return GeneratedGraph(copies, calls)


def _split_kernels(group: Any) -> Iterator[Sequence[Any]]:
    if isinstance(group, ForeachKernelSchedulerNode):
        for part in group.snodes:
            yield from _split_kernels(part)
    else:
        yield list(group.get_nodes())


def _find_copy(
    node: Any, kernel: Sequence[Any], makers: Mapping[str, Any], phase: Phase
) -> Iterator[tuple[str, ObservedCopy]]:
    body = get_loop_body(node)
    loads, stores = body.memory_usage[MemoryUsageType.LOAD], body.memory_usage[MemoryUsageType.STORE]
    if len(loads) != 1 or len(stores) != 1 or body.subblocks or not _is_only_moves(body):
        return
    source, target = str(loads[0].buffer_name), str(stores[0].buffer_name)
    read, written = body.indexing_exprs[loads[0].index_name], body.indexing_exprs[stores[0].index_name]
    ranges = {var: _resolve_size(size) for var, size in body.var_ranges.items()}
    asked = _find_origin(node, _ASKED_FOR)
    users = (user.node for output in node.get_outputs() for user in output.users)
    consumer = next((user for user in users if isinstance(user, ExternKernelSchedulerNode)), None)
    if asked is None and _is_same_order(read, written, ranges):
        return
    names = {member.get_name() for member in kernel}
    if _is_local(node, names):
        return
    passes = 2
    maker = makers.get(source)
    if maker is not None and maker.get_name() in names:
        if _is_local(maker, names):
            return
        passes = 1
    elif any(source == read.name for other in kernel if other is not node for read in other.read_writes.reads):
        passes = 1
    operator, kind, role, origin = _classify_copy(node, asked, consumer, maker, source)
    yield (
        target,
        ObservedCopy(
            operator=operator,
            kind=kind,
            role=role,
            site=find_call_site(origin),
            phase=phase,
            shape=tuple(_resolve_size(size) for size in V.graph.get_buffer(target).get_size()),
            bytes=passes * math.prod(ranges.values()) * node.node.get_dtype().itemsize,
            source=_format_strides(source),
            target=_format_strides(target),
        ),
    )


def _is_only_moves(body: Any) -> bool:
    return all(
        node.op in ("placeholder", "output") or node.target in _MOVES or str(node.target).startswith("get_index")
        for node in body.root_block.graph.nodes
    )


def _is_same_order(read: Any, written: Any, ranges: Mapping[Any, int]) -> bool:
    """True if both expressions walk memory in the same order of loop variables. Expressions with divisions come from
    reshapes across a permutation, and count as another order."""
    from_steps, to_steps = _get_steps(read, ranges), _get_steps(written, ranges)
    if from_steps is None or to_steps is None:
        return bool(read == written)
    moving = sorted((var for var, size in ranges.items() if size > 1 and from_steps[var] != 0), key=str)
    return sorted(moving, key=lambda var: -from_steps[var]) == sorted(moving, key=lambda var: -to_steps[var])


def _get_steps(index: Any, ranges: Mapping[Any, int]) -> dict[Any, int] | None:
    """Elements that memory advances by when a loop variable grows by one; None where the index is not linear."""
    steps = {var: _resolve_size(index.coeff(var)) for var in ranges}
    rest = index - sum(index.coeff(var) * var for var in ranges)
    return steps if not rest.free_symbols & set(ranges) else None


def _is_local(node: Any, names: set[str]) -> bool:
    """True if nothing outside of the kernel reads what `node` makes, so that it never reaches memory."""
    users = [user.node for output in node.get_outputs() for user in output.users]
    return all(not isinstance(user, OutputNode) and user.get_name() in names for user in users)


def _classify_copy(
    node: Any, asked: fx.Node | None, consumer: Any | None, maker: Any | None, source: str
) -> tuple[str, ObservedKind, ObservedRole, fx.Node | None]:
    """Operator, kind, role, and the graph node that the copy belongs to."""
    if asked is not None:
        operator, kind = _classify_explicit_copy(asked)
        return operator, kind, "input", asked
    if consumer is not None:
        origin = _find_origin(consumer)
        operator = _get_operator_name(origin)
        position = _find_position(consumer, node)
        weight = WEIGHT_OPERAND.get(operator.replace(".", "::"))
        is_weight = source in V.graph.graph_inputs and position == weight
        return operator, "operator", "weight" if is_weight else "input", origin
    if isinstance(maker, ExternKernelSchedulerNode):
        origin = _find_origin(maker)
        return _get_operator_name(origin), "operator", "output", origin
    origin = _find_origin(node)
    return _get_operator_name(origin), "operator", "input", origin


def _classify_explicit_copy(clone: fx.Node) -> tuple[str, ObservedKind]:
    """Decompositions write a copying reshape as a clone with `_unsafe_view` behind it."""
    view = next(iter(clone.users)) if len(clone.users) == 1 else None
    if view is None or str(view.meta.get("original_aten", "")) != "aten._unsafe_view.default":
        return "aten.clone", "explicit"
    folded = any(
        _get_operator_name(user) in FOLDED_PRODUCTS and find_call_site(user) == find_call_site(clone)
        for user in view.users
    )
    return ("aten.matmul", "operator") if folded else ("aten.reshape", "reshape")


def _find_origin(node: Any, operators: frozenset[str] | None = None) -> fx.Node | None:
    """Return the graph node of a scheduled one; if several were folded into it, the last to run."""
    if node.node is None:
        return None

    def is_wanted(origin: fx.Node) -> bool:
        return origin.op == "call_function" and (operators is None or _get_operator_name(origin) in operators)

    exact = node.node.get_origin_node()
    if isinstance(exact, fx.Node) and is_wanted(exact):
        return exact
    return max(filter(is_wanted, node.node.origins), default=None)


def _get_operator_name(node: fx.Node | None) -> str:
    if node is None:
        return "<unknown>"
    return str(node.target.overloadpacket) if isinstance(node.target, OpOverload) else str(node.target)


def _find_position(extern: Any, argument: Any) -> int | None:
    names = [operand.get_name() for operand in extern.node.inputs if hasattr(operand, "get_name")]
    made = {output.get_name() for output in argument.get_outputs()}
    return next((position for position, name in enumerate(names) if name in made), None)


def find_call_site(node: fx.Node | None) -> CallSite:
    """Return the call site of a node of AOTAutograd's graphs; a backward node has that of the forward node."""
    if node is None:
        return parse_stack_trace(None)
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    site = parse_stack_trace(node.stack_trace, parse_module_path(entry[0] for entry in stack.values()))
    return resolve_module_site(site, get_class_name(next(reversed(stack.values()))[1]) if stack else "")


def _format_strides(buffer: str) -> str:
    return str([_resolve_size(stride) for stride in V.graph.get_buffer(buffer).get_stride()])


def _resolve_size(size: Any) -> int:
    """A size as a number: the compiled example's where it is symbolic."""
    try:
        return int(size)
    except TypeError:
        return int(V.graph.sizevars.optimization_hint(size))
