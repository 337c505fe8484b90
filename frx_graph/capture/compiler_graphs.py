"""Graphs on their way to an inner compiler: records of AOTAutograd's graphs, and copies of Dynamo's."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from torch import fx

from frx_graph.capture.call_site import parse_stack_trace
from frx_graph.capture.captured_graph import CapturedGraph, GraphInput, InputKind, Phase
from frx_graph.support.torch_internals import copy_dynamo_source, get_parameter_sources, pytree, set_parameter_sources


def wrap_aot_graph(
    module: fx.GraphModule, *, graph_id: str, phase: Phase, train: bool, static_inputs: Collection[str]
) -> CapturedGraph:
    """Return the record of `module`, which is shared, not copied.

    `static_inputs` names the placeholders of parameters and buffers. All outputs count as visible, saved ones, too.
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
    return refresh_captured(captured)


def refresh_captured(captured: CapturedGraph) -> CapturedGraph:
    """Return the record of the same module after in-place changes; added nodes belong to the same phase."""
    graph = captured.aten.graph
    phase = next(iter(captured.phases.values()))
    return replace(
        captured,
        sites={node.name: parse_stack_trace(node.stack_trace) for node in graph.nodes},
        phases=dict.fromkeys((node.name for node in graph.nodes), phase),
        outputs_visible=tuple(
            node.name for node in pytree.tree_leaves(graph.output_node().args) if isinstance(node, fx.Node)
        ),
    )


def copy_dynamo_graph(dynamo: fx.GraphModule) -> fx.GraphModule:
    """Copy a Dynamo graph over the same weights, with all metadata that compilers read."""
    return snapshot_dynamo_graph(dynamo)()


def snapshot_dynamo_graph(dynamo: fx.GraphModule) -> Callable[[], fx.GraphModule]:
    """Copy the graph now; return a function that makes the module later, which takes far longer."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(dynamo.graph, copies)
    graph.output(result).meta.update(dynamo.graph.output_node().meta)
    for node, copied in copies.items():
        copy_dynamo_source(node, copied)

    meta = dict(dynamo.meta)
    sources = get_parameter_sources(dynamo)

    def make_module() -> fx.GraphModule:
        module = fx.GraphModule(dynamo, graph)
        module.meta = dict(meta)
        if sources is not None:
            set_parameter_sources(module, sources)
        return module

    return make_module
