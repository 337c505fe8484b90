"""Gives the outputs of a program the strides that they had before its weights were stored anew.

Convolutions return channels-last where their weights are so stored. What the program's caller gets must not tell that
they are: each graph is run on fakes with the weights as they were and as they are, and where an output's strides
differ, the graph converts it at its end; an output that shares memory with others, where that memory is made. So does a
graph that a break has cut off: what follows may look at strides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import fx
from torch.utils import _pytree as pytree

from frx_graph.capture.graph_outcome import GraphOutcome, graph_outcome, node_values
from frx_graph.passes.layouts.dimension_map import Order
from frx_graph.passes.rewrites.meta_strides.unreliable_values import is_ambiguous
from frx_graph.prepack.layout_conversion import call, converted, order_of
from frx_graph.prepack.original_graph import GraphBefore, constants_as_they_were
from frx_graph.records import Refusal

_NAME = "output_strides"


def keep_output_strides(dynamo: fx.GraphModule, before: GraphBefore, wanted: GraphOutcome) -> tuple[Refusal, ...]:
    """Let `dynamo` return the strides of `wanted`, its outcome `before`, and let its outputs share memory as they did.

    The graph is changed in place. Refused, and left as they are, are outputs that no conversion gives their strides: a
    parameter that is returned, an order that is none of a dense tensor.
    """
    now = graph_outcome(dynamo, before.inputs_now)
    shared = now.shared | wanted.shared
    together = {index for index in _differing(now, wanted) if index in shared or _order(wanted, index) is None}
    if together:
        _convert_memories(dynamo, before, together)
        now = graph_outcome(dynamo, before.inputs_now)
    _say_orders(dynamo, now, wanted)
    _convert_outputs(dynamo, now, wanted, _behind_weights(dynamo, before))
    nodes = pytree.tree_leaves(dynamo.graph.output_node().args[0])
    return tuple(
        Refusal(
            _NAME,
            "no conversion gives it the strides that it had before weights were stored anew",
            (str(nodes[index]),),
        )
        for index in _differing(graph_outcome(dynamo, before.inputs_now), wanted)
    )


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
    return None if shape is None or strides is None else order_of(shape, strides)


def _convert_memories(dynamo: fx.GraphModule, before: GraphBefore, outputs: Iterable[int]) -> None:
    """Convert what the outputs at these positions are views of, or were, for all that reads it: a reshape that was a
    view of a plain image is a copy of one that lies otherwise."""
    now = node_values(dynamo, before.inputs_now)
    with constants_as_they_were(dynamo, before.stored):
        wanted = node_values(dynamo, before.inputs)
    leaves = pytree.tree_leaves(dynamo.graph.output_node().args[0])
    # In the order of the graph: the first that lies in a memory is what the others are views of.
    bases = [
        next(node for node, value in values.items() if value.memory == values[leaves[index]].memory)
        for values in (wanted, now)
        for index in outputs
    ]
    for base in dict.fromkeys(bases):
        order = order_of(wanted[base].shape, wanted[base].strides)
        if base.op == "placeholder" or order is None or now[base].strides == wanted[base].strides:
            continue
        readers = list(base.users)
        with dynamo.graph.inserting_after(base):
            copy = converted(dynamo.graph, base, order)
        for reader in readers:
            reader.replace_input_with(base, copy)
    dynamo.recompile()


def _behind_weights(dynamo: fx.GraphModule, before: GraphBefore) -> frozenset[fx.Node]:
    """What is computed of weights that were stored anew: other values lie as in eager, whatever fakes say."""
    placeholders = dynamo.graph.find_nodes(op="placeholder")
    inputs = zip(placeholders, before.inputs_now, before.inputs, strict=True)
    waiting = [node for node, now, earlier in inputs if now != earlier]
    if before.holds_any:
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
    copies: dict[fx.Node, fx.Node] = {}
    for index, leaf in enumerate(leaves):
        shape, order = wanted.shapes[index], _order(wanted, index)
        if shape is None or order is None:
            continue
        if now.strides[index] == wanted.strides[index] and not (is_ambiguous(shape) and leaf in behind):
            continue
        if index not in now.shared and leaf not in copies:
            with dynamo.graph.inserting_before(output):
                copies[leaf] = converted(dynamo.graph, leaf, order)
    output.args = fx.map_arg(output.args, lambda node: copies.get(node, node))
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
                said[node] = call(
                    dynamo.graph, torch.ops.aten.contiguous.default, node, memory_format=torch.contiguous_format
                )
    output.args = fx.map_arg(output.args, lambda node: said.get(node, node))
    dynamo.recompile()


_LEAST_RANK = 3
"""Of what can lie in another order for a convolution's sake."""
