"""Dynamo graphs kept as they were compiled, to ask later what they would have done with other strides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from frx_graph.capture.graph_outcome import GraphOutcome, graph_outcome
from frx_graph.errors import first_line
from frx_graph.wrapper.call_signature import Strides


@dataclass(frozen=True)
class NotedGraph:
    """A Dynamo graph as it was when it was compiled: `copy` can be run again, on `inputs`."""

    graph_id: str
    copy: fx.GraphModule
    inputs: tuple[Any, ...]
    outcome: GraphOutcome


@dataclass(frozen=True)
class PlacedGraph:
    """A graph with the position among its inputs of each tensor of the call, by its number."""

    graph: NotedGraph
    positions: Mapping[int, int]


def noted(graph_id: str, dynamo: fx.GraphModule, inputs: tuple[Any, ...], outcome: GraphOutcome) -> NotedGraph:
    """Note a graph before the inner compiler changes it. `inputs` and `outcome` are those of the program as eager would
    run it."""
    graph = fx.Graph()
    result = graph.graph_copy(dynamo.graph, {})
    graph.output(result)
    for node in graph.nodes:
        node.meta.clear()
    return NotedGraph(graph_id, fx.GraphModule(dynamo, graph), inputs, outcome)


def seen_outside(
    graphs: Sequence[PlacedGraph], pinned: Strides, given: Strides, differing: Sequence[int]
) -> str | None:
    """Why a caller who gives tensors with the strides `given` would notice that graphs get those of `pinned`; None
    where nobody would. `differing` are the numbers of the tensors whose strides differ."""
    for placed in graphs:
        if any(i not in placed.positions for i in differing):
            return "not every graph reads it"
        try:
            ours, own = (
                graph_outcome(placed.graph.copy, _placed_inputs(placed, chosen, differing))
                for chosen in (pinned, given)
            )
        except Exception as error:  # noqa: BLE001 - an operator may refuse strides with whatever it likes
            return f"the graph could not be looked at: {first_line(error)}"
        if own.draws:
            return "random numbers are drawn in the order in which tensors lie"
        if ours.strides != own.strides:
            return "strides of what the program returns follow those of the input"
        if not ours.shares_memory_as(own):
            return "what is written into, or returned, shares memory by the strides of the input"
    return None


def _placed_inputs(placed: PlacedGraph, strides: Strides, differing: Sequence[int]) -> list[Any]:
    inputs = list(placed.graph.inputs)
    for i in differing:
        inputs[placed.positions[i]] = replace(inputs[placed.positions[i]], strides=tuple(strides[i]))
    return inputs
