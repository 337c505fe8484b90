"""A graph of AOTAutograd's, as an inner compiler is about to compile it: functional ATen, one direction."""

from __future__ import annotations

from collections.abc import Collection

from torch import fx
from torch.utils import _pytree as pytree

from frx_graph.capture.call_site import site_from_stack_trace
from frx_graph.capture.captured_graph import CapturedGraph, GraphInput, InputKind, Phase


def captured_from_aot(
    module: fx.GraphModule, *, graph_id: str, phase: Phase, train: bool, static_inputs: Collection[str]
) -> CapturedGraph:
    """The record of `module`, which is shared, not copied.

    `static_inputs` names the placeholders that hold parameters and buffers: their addresses stay the same from call to
    call. All outputs count as visible, those that are only saved for the backward included.
    """
    graph = module.graph
    return CapturedGraph(
        graph_id=graph_id,
        origin=graph_id,
        train=train,
        aten=module,
        inputs=tuple(
            GraphInput(node.name, node.name, InputKind.PARAMETER if node.name in static_inputs else InputKind.ARGUMENT)
            for node in graph.find_nodes(op="placeholder")
        ),
        sites={node.name: site_from_stack_trace(node.stack_trace) for node in graph.nodes},
        phases={node.name: phase for node in graph.nodes},
        outputs_visible=tuple(
            node.name for node in pytree.tree_leaves(graph.output_node().args) if isinstance(node, fx.Node)
        ),
    )
