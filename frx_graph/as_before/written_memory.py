"""Lets writes of a program reach the values that they reached before its weights were stored anew."""

from __future__ import annotations

from torch import fx

from frx_graph.as_before.conversion import converted, order_of
from frx_graph.as_before.graph_before import GraphBefore, constants_as_they_were
from frx_graph.capture.graph_outcome import graph_outcome, node_values


def keep_written_memory(dynamo: fx.GraphModule, before: GraphBefore) -> None:
    """Where values see a write, or do not, by the strides of weights, as a `reshape` in front of it is a view or a
    copy, let `dynamo` compute all with weights that lie as they did: those that it writes into it writes back.

    The graph is changed in place. Raises `ValueError` for weights of strides that no conversion gives.
    """
    if graph_outcome(dynamo, before.inputs_now).writes_as(before.outcome):
        return
    own = node_values(dynamo, before.inputs_now)
    with constants_as_they_were(dynamo, before.stored):
        earlier = node_values(dynamo, before.inputs)
    placeholders = dynamo.graph.find_nodes(op="placeholder")
    weights = [node for node in own if node.op in ("placeholder", "get_attr")]
    beginning = next(node for node in dynamo.graph.nodes if node.op != "placeholder")
    for weight in weights:
        if own[weight].strides == earlier[weight].strides:
            continue
        order = order_of(earlier[weight].shape, earlier[weight].strides)
        if order is None:
            raise ValueError("no conversion gives a weight the strides that it had before it was stored anew")
        readers = list(weight.users)
        with dynamo.graph.inserting_before(beginning if weight.op == "placeholder" else weight.next):
            copy = converted(dynamo.graph, weight, order)
        for reader in readers:
            reader.replace_input_with(weight, copy)
        if weight.op == "placeholder" and placeholders.index(weight) in before.outcome.written:
            with dynamo.graph.inserting_before(dynamo.graph.output_node()):
                values = [dynamo.graph.call_method("detach", (value,)) for value in (weight, copy)]
                dynamo.graph.call_method("copy_", tuple(values))
    dynamo.recompile()
