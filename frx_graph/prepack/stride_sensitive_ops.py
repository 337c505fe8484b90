"""Lets operators that see how their operands lie see what they saw before a program's weights were stored anew."""

from __future__ import annotations

from torch import Tensor, fx

from frx_graph.capture.graph_outcome import NodeValue, node_values
from frx_graph.capture.observed_call import sees_memory
from frx_graph.passes.rewrites.meta_strides.unreliable_strides import makes_other_strides
from frx_graph.prepack.layout_conversion import converted, order_of
from frx_graph.prepack.original_graph import GraphBefore, constants_as_they_were
from frx_graph.records import Refusal

_NAME = "seen_strides"


def views_by_strides(dynamo: fx.GraphModule, before: GraphBefore) -> bool:
    """Whether an operator of `dynamo` makes a view that goes by how its operand lies, as `as_strided` does, of what
    lies otherwise than before: of a copy it would be a view of something else."""
    now = node_values(dynamo, before.inputs_now)
    seeing = [node for node in dynamo.graph.nodes if node in now and _sees_memory(node)]
    if not seeing:
        return False
    with constants_as_they_were(dynamo, before.stored):
        wanted = node_values(dynamo, before.inputs)
    return any(
        now[node].memory == now[operand].memory and now[operand].strides != wanted[operand].strides
        for node in seeing
        for operand in node.all_input_nodes
        if operand in now
    )


def keep_seen_strides(dynamo: fx.GraphModule, before: GraphBefore) -> tuple[Refusal, ...]:
    """Give operators of `dynamo` that see how their operands lie what they got before, and those that lay
    out their results as nobody can foretell, so that what is behind them lies as it would, too.

    Whether a program that stores weights anew has operators of the first kind is asked of its first call (`prepare`);
    here stand those of graphs that later calls compile. Refused is what no conversion gives its strides, or is written
    into.
    """
    now = node_values(dynamo, before.inputs_now)
    seeing = [node for node in dynamo.graph.nodes if _sees_memory(node) or _is_doubtful(now.get(node))]
    if not seeing:
        return ()
    with constants_as_they_were(dynamo, before.stored):
        wanted = node_values(dynamo, before.inputs)
    refused = []
    for node in seeing:
        for operand in node.all_input_nodes:
            if operand not in now or now[operand].strides == wanted[operand].strides:
                continue
            order = order_of(wanted[operand].shape, wanted[operand].strides)
            if order is None or writes(node):
                refused.append(
                    Refusal(_NAME, "it sees strides, and no conversion gives it those from before", (str(node),))
                )
                continue
            with dynamo.graph.inserting_before(node):
                node.replace_input_with(operand, converted(dynamo.graph, operand, order))
    dynamo.recompile()
    return tuple(refused)


def _sees_memory(node: fx.Node) -> bool:
    if node.op == "call_method":
        return sees_memory(getattr(Tensor, str(node.target), None))
    return node.op == "call_function" and sees_memory(node.target)


def _is_doubtful(value: NodeValue | None) -> bool:
    return value is not None and any(map(makes_other_strides, value.operators))


def writes(node: fx.Node) -> bool:
    """Whether it calls what, by its name or its schema, writes into an operand."""
    if node.op not in ("call_function", "call_method"):
        return False
    schema = getattr(node.target, "_schema", None)
    return str(node.target).endswith("_") or (schema is not None and schema.is_mutable)
