"""A Dynamo graph as a list of nodes and back, names kept.

`fx.GraphModule` pickles its generated source and traces it again, which renames nodes and fails on what source cannot
say (`GraphModule.__reduce__`, torch 2.15 and 2.13). `torch.fx._graph_pickler` keeps nodes, but wants fake tensors and a
shape environment with them, executes what it reads, and differs between versions. A Dynamo graph is a flat list of
calls, so here it is written as one. Metadata stay behind: the process that reads the graph traces it anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import SymInt, Tensor, fx, nn

from frx_graph.errors import TravelError
from frx_graph.travel.arguments import from_json, to_json
from frx_graph.travel.documents import NodeDocument
from frx_graph.travel.import_paths import found_at, import_path


def nodes_to_documents(graph: fx.Graph) -> list[NodeDocument]:
    """All nodes of `graph`. Raises `TravelError`, which names the node, for what another process could not call."""
    documents = []
    for node in graph.nodes:
        try:
            documents.append(_document(node))
        except TravelError as error:
            raise TravelError(f"{node.name}: {error.message}", error.hint) from error
    return documents


def graph_from_documents(documents: Sequence[NodeDocument]) -> fx.GraphModule:
    """The graph, as a module that is called with its placeholders in order. Raises `TravelError` where a document does
    not describe one."""
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    for document in documents:
        args = tuple(from_json(part, nodes) for part in document.args)
        kwargs = {name: from_json(part, nodes) for name, part in document.kwargs.items()}
        target = found_at(document.target) if document.op == "call_function" else document.target
        node = graph.create_node(document.op, target, args, kwargs, document.name)
        if node.name != document.name:
            raise TravelError(f"{document.name!r} is no name of a node")
        nodes[node.name] = node
    return fx.GraphModule(nn.Module(), graph)


def _document(node: fx.Node) -> NodeDocument:
    if node.op == "get_attr":
        raise TravelError(
            "a constant or the body of a higher-order operator, which the graph itself holds, cannot travel"
        )
    if node.op == "call_module":
        raise TravelError(f"the call of a module ({node.target}) cannot travel")
    value = node.meta.get("example_value")
    if isinstance(value, Tensor) and any(isinstance(size, SymInt) for size in value.shape):
        raise TravelError("its sizes are not fixed, and graphs with dynamic shapes cannot travel")
    return NodeDocument.model_validate(
        {
            "op": node.op,
            "name": node.name,
            "target": node.target if isinstance(node.target, str) else import_path(node.target),
            "args": [to_json(part) for part in node.args],
            "kwargs": {name: to_json(part) for name, part in node.kwargs.items()},
        }
    )
