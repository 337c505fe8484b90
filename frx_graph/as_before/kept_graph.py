"""A graph that does what it did before weights were stored anew: what its writes reach, what operators see that look at
strides, how its outputs lie."""

from __future__ import annotations

from torch import fx

from frx_graph.as_before.graph_before import GraphBefore
from frx_graph.as_before.output_strides import keep_output_strides
from frx_graph.as_before.seen_strides import keep_seen_strides
from frx_graph.as_before.written_memory import keep_written_memory
from frx_graph.records import Refusal


def keep_as_before(dynamo: fx.GraphModule, before: GraphBefore) -> tuple[Refusal, ...]:
    """Change `dynamo` in place; refused is what cannot be kept. Raises `ValueError` for weights of strides that no
    conversion gives, and what the graph raises on fakes."""
    if not before.differs:
        return ()
    keep_written_memory(dynamo, before)
    return (*keep_seen_strides(dynamo, before), *keep_output_strides(dynamo, before))
