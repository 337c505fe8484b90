"""Which of the two layouts an operator runs in as the program stands."""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts
from frx_graph.facts.layout import Layout
from frx_graph.passes.layouts.memory_order import memory_order


def current_layout(
    op: OpFacts, operands: Sequence[ValueFacts], results: Sequence[ValueFacts], facts: GraphFacts
) -> Layout:
    """The order of the first result that has one. Without one (the backward of a first convolution has no gradient of
    its input), channels-last if any operand or the weight is: torch's rule for convolutions."""
    for value in results:
        order = memory_order(value)
        if order is not None:
            return order
    weights = facts.input_values(op) if op.operator == "aten.convolution_backward" else ()
    orders = {memory_order(value) for value in (*operands, *weights)}
    return Layout.CHANNELS_LAST if Layout.CHANNELS_LAST in orders else Layout.PLAIN
