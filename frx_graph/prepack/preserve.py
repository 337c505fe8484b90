"""A graph that does what it did before weights were stored anew: what its writes reach, what operators see that look at
strides, how its outputs lie."""

from __future__ import annotations

from torch import fx

from frx_graph.capture.graph_outcome import graph_outcome
from frx_graph.errors import first_line
from frx_graph.prepack.original_graph import GraphBefore
from frx_graph.prepack.output_strides import keep_output_strides
from frx_graph.prepack.stride_sensitive_ops import keep_seen_strides, views_by_strides, writes
from frx_graph.prepack.weight_conversion import convert_weights
from frx_graph.records import Refusal


def keep_as_before(dynamo: fx.GraphModule, before: GraphBefore) -> tuple[Refusal, ...]:
    """Change `dynamo` in place; refused is what cannot be kept. Raises `ValueError` for weights of strides that no
    conversion gives."""
    if not before.differs:
        return () if before.outcome is not None else (not_looked_at(before.failure),)
    outcome, failure, converted = before.outcome, before.failure, False
    try:
        if outcome is not None:
            # Which values see a write may go by how weights lie: a `reshape` in front of it is a view, or a copy.
            writes_alike = graph_outcome(dynamo, before.inputs_now).writes_as(outcome)
            if not writes_alike or views_by_strides(dynamo, before):
                converted = True
                convert_weights(dynamo, before, outcome.written)
            return (*keep_seen_strides(dynamo, before), *keep_output_strides(dynamo, before, outcome))
    except Exception as error:  # noqa: BLE001 - an operator may refuse fakes with whatever it likes
        failure = first_line(error)
    if not converted:
        # Nobody knows what it does: with weights that lie as before, it does the same.
        written = range(len(before.inputs)) if any(map(writes, dynamo.graph.nodes)) else ()
        convert_weights(dynamo, before, written)
    return (not_looked_at(failure),)


def not_looked_at(reason: str) -> Refusal:
    """What is said of a graph of which nobody knows what it does."""
    return Refusal("frx_graph.compile", f"a graph could not be looked at: {reason}")
