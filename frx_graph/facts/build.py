"""Build the facts of a captured graph: the only place that reads `node.meta`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import CapturedGraph, InputKind, Phase
from frx_graph.facts.graph_facts import Argument, GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.support.size_hint import get_shape_hint, get_stride_hint, is_known
from frx_graph.support.torch_internals import (
    HigherOrderOperator,
    OpOverload,
    get_overload_name,
    get_schema,
    get_storage_id,
    pytree,
)

_KNOWN_NAMESPACES = frozenset({"aten", "prims"})
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def build_graph_facts(captured: CapturedGraph) -> GraphFacts:
    """Return the facts of every value and operator; linear in the size of the graph."""
    graph = captured.aten.graph
    kinds = {entry.name: entry.kind for entry in captured.inputs}
    paths = {entry.name: entry.path for entry in captured.inputs}
    storages = _StorageNumbering()
    tensors: dict[str, tuple[Tensor, str | None]] = {}
    ops: list[OpFacts] = []
    mutated: set[int] = set()

    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            value = node.meta.get("val")
            if isinstance(value, Tensor):
                tensors[node.name] = (value, None)
        elif node.op == "call_function" and node.target is not operator.getitem:
            value = node.meta.get("val")
            names = {node.name: value} if isinstance(value, Tensor) else _collect_elements(node)
            for name, value in names.items():
                tensors[name] = (value, node.name)
            op = _build_op_facts(node, captured, tensors, tuple(names))
            ops.append(op)
            mutated.update(storages.number_storage(tensors[name][0]) for name in op.mutates)

    users: dict[str, list[str]] = {name: [] for name in tensors}
    for op in ops:
        for name in dict.fromkeys(op.inputs):
            users[name].append(op.node)
    visible = {storages.number_storage(tensors[name][0]) for name in captured.outputs_visible if name in tensors}
    values = {
        name: ValueFacts(
            name=name,
            shape=get_shape_hint(value),
            strides=get_stride_hint(value) if value.layout is torch.strided else (0,) * value.dim(),
            dtype=value.dtype,
            device=value.device,
            storage=storages.number_storage(value),
            producer=producer,
            users=tuple(users[name]),
            kind=kinds.get(name, InputKind.ARGUMENT if producer is None else None),
            path=paths.get(name, ""),
            requires_grad=value.requires_grad,
            mutated=storages.number_storage(value) in mutated,
            user_visible=storages.number_storage(value) in visible,
            dynamic_dims=tuple(dim for dim, n in enumerate(value.shape) if not isinstance(n, int)),
            data_dependent=not all(is_known(n) for n in value.shape),
        )
        for name, (value, producer) in tensors.items()
    }
    return GraphFacts(
        graph_id=captured.graph_id,
        origin=captured.origin,
        train=captured.train,
        values=values,
        ops=tuple(ops),
        inputs=tuple(node.name for node in graph.nodes if node.op == "placeholder" and node.name in values),
        outputs=tuple(name for name in captured.outputs_visible if name in values),
        calls=captured.calls,
        gradients=tuple(pair for pair in captured.gradients if pair[0] in values and pair[1] in values),
    )


class _StorageNumbering:
    """Number storages in order of appearance, and keep them alive so that identities stay unique."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[int, object]] = {}

    def number_storage(self, value: Tensor) -> int:
        kept: Any = value.untyped_storage() if value.layout is torch.strided else value
        key = id(value) if kept is value else get_storage_id(kept)
        return self._groups.setdefault(key, (len(self._groups), kept))[0]


def _collect_elements(node: fx.Node) -> dict[str, Tensor]:
    """Return the tensors of a tuple, and of the tuples in it that are read; without a value, as for some higher-order
    operators, only those that are read."""
    value = node.meta.get("val")
    taken = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if value is None:
        items = {index: user.meta.get("val") for index, user in taken.items()}
    else:
        items = dict(enumerate(value)) if isinstance(value, (tuple, list)) else {}
    found: dict[str, Tensor] = {}
    for index, item in items.items():
        if isinstance(item, Tensor):
            found[taken[index].name if index in taken else f"{node.name}.{index}"] = item
        elif index in taken:
            found |= _collect_elements(taken[index])
    return found


def _build_op_facts(
    node: fx.Node, captured: CapturedGraph, tensors: Mapping[str, tuple[Tensor, str | None]], outputs: tuple[str, ...]
) -> OpFacts:
    called = _read_operator(node.target)
    arguments: list[tuple[int | str, Any]] = [*enumerate(node.args), *node.kwargs.items()]
    return OpFacts(
        node=node.name,
        target=called.target,
        operator=called.operator,
        args=tuple(_convert_argument(a) for a in node.args),
        kwargs={key: _convert_argument(a) for key, a in node.kwargs.items()},
        inputs=tuple(n.name for n in _list_input_nodes(node) if n.name in tensors),
        outputs=outputs,
        mutates=tuple(_list_written_values(node, called.written)) if called.written else (),
        phase=captured.phases.get(node.name, Phase.FORWARD),
        site=captured.sites.get(node.name, UNKNOWN_SITE),
        view=called.view,
        pointwise=called.pointwise,
        opaque=called.opaque,
        symbolic=frozenset(key for key, argument in arguments if _is_symbolic(argument)),
    )


@dataclass(frozen=True)
class _OperatorTraits:
    """Facts that all calls of an operator share; `written` are position and name of the arguments that it writes."""

    target: str
    operator: str
    written: tuple[tuple[int, str], ...] = ()
    view: bool = False
    pointwise: bool = False
    opaque: bool = True


@functools.cache
def _read_operator(target: Any) -> _OperatorTraits:
    if not isinstance(target, OpOverload):
        name = str(getattr(target, "__name__", target))
        return _OperatorTraits(str(target) if isinstance(target, HigherOrderOperator) else name, name)
    schema = get_schema(target)
    return _OperatorTraits(
        target=str(target),
        operator=str(target.overloadpacket),
        written=tuple(
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ),
        view=any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
        pointwise=_is_pointwise(target),
        opaque=target.namespace not in _KNOWN_NAMESPACES,
    )


def _is_pointwise(target: OpOverload) -> bool:
    """Return True for torch's pointwise tag, which some in-place overloads lack (`masked_fill_`) but not their twin."""
    if torch.Tag.pointwise in target.tags:
        return True
    name = get_schema(target).name.partition("::")[2]
    twin = getattr(getattr(torch.ops, target.namespace), name.removesuffix("_"), None) if name.endswith("_") else None
    overload = getattr(twin, get_overload_name(target), None)
    return overload is not None and torch.Tag.pointwise in overload.tags


def _list_input_nodes(node: fx.Node) -> list[fx.Node]:
    """Return the inputs in argument order, a node that is given twice twice (unlike `node.all_input_nodes`)."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def _list_written_values(node: fx.Node, arguments: tuple[tuple[int, str], ...]) -> list[str]:
    written: list[str] = []
    for position, name in arguments:
        value = node.args[position] if position < len(node.args) else node.kwargs.get(name)
        written.extend(n.name for n in pytree.tree_leaves(value) if isinstance(n, fx.Node))
    return written


def _is_symbolic(value: Any) -> bool:
    value = value.meta.get("val") if isinstance(value, fx.Node) else value
    return isinstance(value, _SYMBOLIC)


def _convert_argument(value: Any) -> Argument:
    if isinstance(value, fx.Node):
        inner = value.meta.get("val")
        return ValueRef(value.name) if isinstance(inner, (Tensor, tuple, list)) else _convert_argument(inner)
    if isinstance(value, (list, tuple)):
        return tuple(_convert_argument(item) for item in value)
    if isinstance(value, _SYMBOLIC):
        hint = value.node.hint
        return hint if isinstance(hint, (int, float, bool)) else repr(value)
    if value is None or isinstance(
        value, (bool, int, float, str, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)
    ):
        return value
    return repr(value)
