"""Lets a graph compute with weights that lie as they did before they were stored anew."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import fx

from frx_graph.passes.layouts.dimension_map import Order
from frx_graph.prepack.layout_conversion import converted, order_of
from frx_graph.prepack.original_graph import GraphBefore, held_weights


def convert_weights(dynamo: fx.GraphModule, before: GraphBefore, written: Collection[int]) -> None:
    """Convert in `dynamo` each weight that was stored anew. Of the inputs, those at the positions `written` are written
    back.

    The graph is changed in place. Raises `ValueError` for weights of strides that no conversion gives.
    """
    beginning = next(node for node in dynamo.graph.nodes if node.op != "placeholder")
    weights = list(_stored_anew(dynamo, before))
    if any(order is None for _, _, order in weights):
        raise ValueError("no conversion gives a weight the strides that it had before it was stored anew")
    for weight, position, order in weights:
        assert order is not None
        readers = list(weight.users)
        with dynamo.graph.inserting_before(weight.next if position is None else beginning):
            copy = converted(dynamo.graph, weight, order)
        for reader in readers:
            reader.replace_input_with(weight, copy)
        if position in written:
            with dynamo.graph.inserting_before(dynamo.graph.output_node()):
                values = [dynamo.graph.call_method("detach", (value,)) for value in (weight, copy)]
                dynamo.graph.call_method("copy_", tuple(values))
    dynamo.recompile()


def _stored_anew(dynamo: fx.GraphModule, before: GraphBefore) -> Iterator[tuple[fx.Node, int | None, Order | None]]:
    """Weights that lie otherwise now, with their positions among the inputs, and the orders that they had."""
    placeholders = dynamo.graph.find_nodes(op="placeholder")
    for position, (node, now, earlier) in enumerate(zip(placeholders, before.inputs_now, before.inputs, strict=True)):
        if now != earlier:
            yield node, position, order_of(earlier.shape, earlier.strides)
    held = held_weights(dynamo, before.stored)
    for node in dynamo.graph.find_nodes(op="get_attr"):
        weight = held.get(str(node.target))
        if weight is not None:
            yield node, None, order_of(tuple(weight.shape), before.stored[id(weight)].before)
