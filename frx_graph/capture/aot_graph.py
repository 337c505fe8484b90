"""A graph of AOTAutograd's, as an inner compiler is about to compile it: functional ATen, one direction."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch import fx

from frx_graph.capture.call_site import site_from_stack_trace
from frx_graph.capture.captured_graph import CapturedGraph, GraphInput, InputKind, Phase
from frx_graph.support.torch_internals import pytree


def captured_from_aot(
    module: fx.GraphModule, *, graph_id: str, phase: Phase, train: bool, static_inputs: Collection[str]
) -> CapturedGraph:
    """The record of `module`, which is shared, not copied.

    `static_inputs` names the placeholders that hold parameters and buffers: their addresses stay the same from call to
    call. All outputs count as visible, those that are only saved for the backward included.
    """
    graph = module.graph
    captured = CapturedGraph(
        graph_id=graph_id,
        origin=graph_id,
        train=train,
        aten=module,
        inputs=tuple(
            GraphInput(node.name, node.name, InputKind.PARAMETER if node.name in static_inputs else InputKind.ARGUMENT)
            for node in graph.find_nodes(op="placeholder")
        ),
        sites={},
        phases=dict.fromkeys((node.name for node in graph.nodes), phase),
        outputs_visible=(),
    )
    return renewed(captured)


def renewed(captured: CapturedGraph) -> CapturedGraph:
    """The record of the same module after it was changed in place; nodes that were added belong to the same phase."""
    graph = captured.aten.graph
    phase = next(iter(captured.phases.values()))
    return replace(
        captured,
        sites={node.name: site_from_stack_trace(node.stack_trace) for node in graph.nodes},
        phases=dict.fromkeys((node.name for node in graph.nodes), phase),
        outputs_visible=tuple(
            node.name for node in pytree.tree_leaves(graph.output_node().args) if isinstance(node, fx.Node)
        ),
    )
