"""Write a Dynamo graph as a list of nodes and read it back, names kept.

`fx.GraphModule` pickles its generated source and traces it again, which renames nodes and fails on values that source
cannot express (`GraphModule.__reduce__`, torch 2.15 and 2.13). `torch.fx._graph_pickler` keeps nodes, but wants fake
tensors and a shape environment with them, executes what it reads, and differs between versions. A Dynamo graph is a
flat list of calls, so here it is written as one. Metadata are not written: the process that reads the graph traces it
again.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import SymInt, Tensor, fx, nn

from frx_graph.errors import SerializationError
from frx_graph.serialization.arguments import decode_value, encode_value
from frx_graph.serialization.import_paths import find_import_path, is_checkpoint, resolve_import_path
from frx_graph.serialization.schema import NodeDocument


def serialize_nodes(graph: fx.Graph) -> list[NodeDocument]:
    """Return all nodes. Raises `SerializationError`, which names the node, for a target that another process lacks."""
    documents = []
    for node in graph.nodes:
        try:
            documents.append(_serialize_node(node))
        except SerializationError as error:
            raise SerializationError(f"{node.name}: {error.message}", error.hint) from error
    return documents


def deserialize_graph(documents: Sequence[NodeDocument]) -> fx.GraphModule:
    """Return the graph, as a module that is called with its placeholders in order. Raises `SerializationError` if a
    document does not describe one."""
    graph, bodies = fx.Graph(), nn.Module()
    nodes: dict[str, fx.Node] = {}
    for document in documents:
        if document.op == "get_attr" and document.body is None:
            raise SerializationError(f"{document.name!r} gets nothing")
        args = tuple(decode_value(part, nodes) for part in document.args)
        kwargs = {name: decode_value(part, nodes) for name, part in document.kwargs.items()}
        target = resolve_import_path(document.target) if document.op == "call_function" else document.target
        node = graph.create_node(document.op, target, args, kwargs, document.name)
        if node.name != document.name:
            raise SerializationError(f"{document.name!r} is not a node's name")
        nodes[node.name] = node
        if document.body is not None:
            bodies.add_module(document.target, deserialize_graph(document.body))
    return fx.GraphModule(bodies, graph)


def _serialize_node(node: fx.Node) -> NodeDocument:
    if node.op == "call_module":
        raise SerializationError(f"the call of a module ({node.target}) cannot be serialized")
    value = node.meta.get("example_value")
    if isinstance(value, Tensor) and any(isinstance(size, SymInt) for size in value.shape):
        raise SerializationError("its sizes are not fixed, and graphs with dynamic shapes cannot be serialized")
    return NodeDocument.model_validate(
        {
            "op": node.op,
            "name": node.name,
            "target": node.target if isinstance(node.target, str) else find_import_path(node.target),
            "args": [encode_value(part) for part in node.args],
            "kwargs": {name: encode_value(part) for name, part in node.kwargs.items()},
            "body": _serialize_body(node) if node.op == "get_attr" else None,
        }
    )


def _serialize_body(node: fx.Node) -> list[NodeDocument]:
    held = getattr(node.graph.owning_module, str(node.target), None)
    if not isinstance(held, fx.GraphModule):
        raise SerializationError("a constant that the graph itself holds cannot be serialized")
    if not all(is_checkpoint(user.target) for user in node.users):
        raise SerializationError(
            "the body of a higher-order operator, which the graph itself holds, cannot be serialized"
        )
    if held.meta.get("_checkpoint_context_fn") is not None:
        raise SerializationError("a checkpoint with a function that selects what is kept cannot be serialized")
    return serialize_nodes(held.graph)
