"""Gives the outputs of a program the strides that they had before its weights were stored anew.

Convolutions return channels-last where their weights are so stored. What the program's caller gets must not tell that
they are: each graph is run on fakes with the weights as they were and as they are, and where an output's strides
differ, the graph converts it at its end; an output that shares memory with others, where that memory is made. So does a
graph that a break has cut off: what follows may look at strides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from frx_graph.capture.graph_outcome import GraphOutcome, InputTensor, NodeValue, graph_outcome, node_values
from frx_graph.capture.observed_call import sees_memory
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, dimension_order, inverse_order, strides_for_order
from frx_graph.passes.rewrites.conversion import MEMORY_FORMATS
from frx_graph.passes.rewrites.doubtful_strides import makes_other_strides
from frx_graph.passes.rewrites.doubtful_values import is_ambiguous
from frx_graph.records import Refusal
from frx_graph.rules.dimension_map import Order
from frx_graph.weights_stored_anew import Stored

_NAME = "kept_output_strides"
_NOTHING: Stored = MappingProxyType({})


def as_they_were(inputs: Sequence[Any], stored: Stored) -> tuple[Any, ...]:
    """A graph's inputs, its parameters with the strides that they had when the program was given to us."""
    return tuple(_as_it_was(value, stored) for value in inputs)


def _as_it_was(value: Any, stored: Stored) -> Any:
    weight = stored.get(value.identity) if isinstance(value, InputTensor) else None
    return replace(value, strides=weight.before) if weight is not None else value


@contextlib.contextmanager
def constants_as_they_were(dynamo: fx.GraphModule, stored: Stored) -> Iterator[bool]:
    """Inside, the weights that the graph holds itself, as where it is frozen, have the strides that they had when the
    program was given to us, and no values; False where it holds none that was stored anew."""
    held: list[tuple[nn.Module, str, nn.Parameter]] = []
    for target in dict.fromkeys(str(node.target) for node in dynamo.graph.find_nodes(op="get_attr")):
        path, _, name = target.rpartition(".")
        owner = dynamo.get_submodule(path)
        value = getattr(owner, name, None)
        if id(value) in stored and isinstance(value, nn.Parameter):
            held.append((owner, name, value))
    try:
        for owner, name, value in held:
            like = torch.empty_strided(value.shape, stored[id(value)].before, dtype=value.dtype, device=value.device)
            setattr(owner, name, nn.Parameter(like, requires_grad=value.requires_grad))
        yield bool(held)
    finally:
        for owner, name, value in held:
            setattr(owner, name, value)


def keep_output_strides(
    dynamo: fx.GraphModule,
    inputs: Sequence[Any],
    before: Sequence[Any],
    wanted: GraphOutcome,
    stored: Stored = _NOTHING,
) -> tuple[Refusal, ...]:
    """Let `dynamo`, which is given `inputs`, return the strides that it returns for `before`: those of `wanted`; and
    let outputs share memory as they do there.

    `stored` are the weights that it may hold itself. The graph is changed in place. Refused, and left as they are, are
    outputs that no conversion gives their strides: a parameter that is returned, an order that is none of a dense
    tensor.
    """
    now = graph_outcome(dynamo, inputs)
    shared = now.shared | wanted.shared
    together = {index for index in _differing(now, wanted) if index in shared or _order(wanted, index) is None}
    if together:
        _convert_memories(dynamo, inputs, before, together, stored)
        now = graph_outcome(dynamo, inputs)
    _say_orders(dynamo, now, wanted)
    _convert_outputs(dynamo, now, wanted, _behind_weights(dynamo, inputs, before, stored))
    nodes = pytree.tree_leaves(dynamo.graph.output_node().args[0])
    return tuple(
        Refusal(
            _NAME,
            "no conversion gives it the strides that it had before weights were stored anew",
            (str(nodes[index]),),
        )
        for index in _differing(graph_outcome(dynamo, inputs), wanted)
    )


def keep_written_memory(
    dynamo: fx.GraphModule,
    inputs: Sequence[Any],
    before: Sequence[Any],
    wanted: GraphOutcome,
    stored: Stored = _NOTHING,
) -> None:
    """Where values see a write, or do not, by the strides of weights, as a `reshape` in front of it is a view or a
    copy, let `dynamo` compute all with weights that lie as in `before`: those that it writes into it writes back.

    The graph is changed in place. Raises `ValueError` for weights of strides that no conversion gives.
    """
    if graph_outcome(dynamo, inputs).writes_as(wanted):
        return
    own = node_values(dynamo, inputs)
    with constants_as_they_were(dynamo, stored):
        earlier = node_values(dynamo, before)
    placeholders = dynamo.graph.find_nodes(op="placeholder")
    weights = [node for node in own if node.op in ("placeholder", "get_attr")]
    beginning = next(node for node in dynamo.graph.nodes if node.op != "placeholder")
    for weight in weights:
        if own[weight].strides == earlier[weight].strides:
            continue
        order = _order_of(earlier[weight].shape, earlier[weight].strides)
        if order is None:
            raise ValueError("no conversion gives a weight the strides that it had before it was stored anew")
        readers = list(weight.users)
        with dynamo.graph.inserting_before(beginning if weight.op == "placeholder" else weight.next):
            converted = _converted(dynamo.graph, weight, order)
        for reader in readers:
            reader.replace_input_with(weight, converted)
        if weight.op == "placeholder" and placeholders.index(weight) in wanted.written:
            with dynamo.graph.inserting_before(dynamo.graph.output_node()):
                values = [dynamo.graph.call_method("detach", (value,)) for value in (weight, converted)]
                dynamo.graph.call_method("copy_", tuple(values))
    dynamo.recompile()


def keep_seen_strides(
    dynamo: fx.GraphModule, inputs: Sequence[Any], before: Sequence[Any], stored: Stored = _NOTHING
) -> tuple[Refusal, ...]:
    """Give operators of `dynamo` that see how their operands lie what they would get for `before`, and those that lay
    out their results as nobody can foretell, so that what is behind them lies as it would, too.

    Whether a program that stores weights anew has operators of the first kind is asked of its first call (`prepare`);
    here stand those of graphs that later calls compile. Refused is what no conversion gives its strides, or is written
    into.
    """
    now = node_values(dynamo, inputs)
    seeing = [node for node in dynamo.graph.nodes if _sees_memory(node) or _is_doubtful(now.get(node))]
    if not seeing:
        return ()
    with constants_as_they_were(dynamo, stored):
        wanted = node_values(dynamo, before)
    refused = []
    for node in seeing:
        for operand in node.all_input_nodes:
            if operand not in now or now[operand].strides == wanted[operand].strides:
                continue
            order = _order_of(wanted[operand].shape, wanted[operand].strides)
            if order is None or _writes(node):
                refused.append(
                    Refusal(_NAME, "it sees strides, and no conversion gives it those from before", (str(node),))
                )
                continue
            with dynamo.graph.inserting_before(node):
                node.replace_input_with(operand, _converted(dynamo.graph, operand, order))
    dynamo.recompile()
    return tuple(refused)


def _sees_memory(node: fx.Node) -> bool:
    if node.op == "call_method":
        return sees_memory(getattr(Tensor, str(node.target), None))
    return node.op == "call_function" and sees_memory(node.target)


def _is_doubtful(value: NodeValue | None) -> bool:
    return value is not None and any(map(makes_other_strides, value.operators))


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return str(node.target).endswith("_") or (schema is not None and schema.is_mutable)


def _differing(now: GraphOutcome, wanted: GraphOutcome) -> list[int]:
    """The outputs with other strides, and those that share memory in one of both only."""
    alone = now.shared ^ wanted.shared
    return [
        index
        for index, (ours, theirs) in enumerate(zip(now.strides, wanted.strides, strict=True))
        if ours != theirs or index in alone
    ]


def _order(outcome: GraphOutcome, index: int) -> Order | None:
    shape, strides = outcome.shapes[index], outcome.strides[index]
    return None if shape is None or strides is None else _order_of(shape, strides)


def _order_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> Order | None:
    """The order with exactly these strides, in dimensions of size 1 as well."""
    order = dimension_order(shape, strides)
    known = (tuple(range(len(shape))), CHANNELS_LAST_ORDER.get(len(shape), order), order)
    return next((candidate for candidate in known if strides_for_order(shape, candidate) == strides), None)


def _convert_memories(
    dynamo: fx.GraphModule,
    inputs: Sequence[Any],
    before: Sequence[Any],
    outputs: Iterable[int],
    stored: Stored,
) -> None:
    """Convert what the outputs at these positions are views of, or were, for all that reads it: a reshape that was a
    view of a plain image is a copy of one that lies otherwise."""
    now = node_values(dynamo, inputs)
    with constants_as_they_were(dynamo, stored):
        wanted = node_values(dynamo, before)
    leaves = pytree.tree_leaves(dynamo.graph.output_node().args[0])
    # In the order of the graph: the first that lies in a memory is what the others are views of.
    bases = [
        next(node for node, value in values.items() if value.memory == values[leaves[index]].memory)
        for values in (wanted, now)
        for index in outputs
    ]
    for base in dict.fromkeys(bases):
        order = _order_of(wanted[base].shape, wanted[base].strides)
        if base.op == "placeholder" or order is None or now[base].strides == wanted[base].strides:
            continue
        readers = list(base.users)
        with dynamo.graph.inserting_after(base):
            converted = _converted(dynamo.graph, base, order)
        for reader in readers:
            reader.replace_input_with(base, converted)
    dynamo.recompile()


def _behind_weights(
    dynamo: fx.GraphModule, inputs: Sequence[Any], before: Sequence[Any], stored: Stored
) -> frozenset[fx.Node]:
    """What is computed of weights that were stored anew: other values lie as in eager, whatever fakes say."""
    placeholders = dynamo.graph.find_nodes(op="placeholder")
    waiting = [node for node, own, its in zip(placeholders, inputs, before, strict=True) if own != its]
    if stored:
        waiting.extend(dynamo.graph.find_nodes(op="get_attr"))
    found: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.users)
    return frozenset(found)


def _convert_outputs(
    dynamo: fx.GraphModule, now: GraphOutcome, wanted: GraphOutcome, behind: Collection[fx.Node]
) -> None:
    output = dynamo.graph.output_node()
    leaves = pytree.tree_leaves(output.args[0])
    converted: dict[fx.Node, fx.Node] = {}
    for index, leaf in enumerate(leaves):
        shape, order = wanted.shapes[index], _order(wanted, index)
        if shape is None or order is None:
            continue
        if now.strides[index] == wanted.strides[index] and not (is_ambiguous(shape) and leaf in behind):
            continue
        if index not in now.shared and leaf not in converted:
            with dynamo.graph.inserting_before(output):
                converted[leaf] = _converted(dynamo.graph, leaf, order)
    output.args = fx.map_arg(output.args, lambda node: converted.get(node, node))
    dynamo.recompile()


def _say_orders(dynamo: fx.GraphModule, now: GraphOutcome, wanted: GraphOutcome) -> None:
    """Let plain outputs that need no conversion be asked for plain. Nothing is run for that, but where a compiler
    decomposes an operator into others that follow their operands: Inductor's `index_select` does (torch 2.15)."""
    output = dynamo.graph.output_node()
    leaves = pytree.tree_leaves(output.args[0])
    said: dict[fx.Node, fx.Node] = {}
    for index, node in enumerate(leaves):
        computed = isinstance(node, fx.Node) and node.op not in ("placeholder", "get_attr") and node not in said
        shape, agree = now.shapes[index], now.strides[index] == wanted.strides[index]
        if not computed or shape is None or not agree or index in now.shared or len(shape) < _LEAST_RANK:
            continue
        if _order(wanted, index) == tuple(range(len(shape))):
            with dynamo.graph.inserting_before(output):
                said[node] = _call(
                    dynamo.graph, torch.ops.aten.contiguous.default, node, memory_format=torch.contiguous_format
                )
    output.args = fx.map_arg(output.args, lambda node: said.get(node, node))
    dynamo.recompile()


_LEAST_RANK = 3
"""Of what can lie in another order for a convolution's sake."""


def _converted(graph: fx.Graph, node: fx.Node, order: Order) -> fx.Node:
    """A copy of `node` in `order` at the insertion point."""
    rank = len(order)
    if order == tuple(range(rank)):
        return _call(graph, torch.ops.aten.clone.default, node, memory_format=torch.contiguous_format)
    if rank in MEMORY_FORMATS and order == CHANNELS_LAST_ORDER[rank]:
        return _call(graph, torch.ops.aten.clone.default, node, memory_format=MEMORY_FORMATS[rank])
    stored = _call(graph, torch.ops.aten.permute.default, node, list(order))
    with graph.inserting_after(stored):
        copied = _call(graph, torch.ops.aten.clone.default, stored, memory_format=torch.contiguous_format)
    with graph.inserting_after(copied):
        return _call(graph, torch.ops.aten.permute.default, copied, inverse_order(order))


def _call(graph: fx.Graph, target: Any, source: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
    node = graph.call_function(target, (source, *args), kwargs)
    value = source.meta.get("example_value")
    if isinstance(value, Tensor):
        node.meta["example_value"] = target(value, *args, **kwargs)
    return node
