"""A graph of Dynamo's as it is now: inner compilers change what they are given."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

_DYNAMOS_NOTES = ("_param_name_to_source",)
"""Attributes of a module that AOTAutograd tells weights by (torch 2.15, `_aot_autograd/frontend_utils.py`)."""


def graph_as_it_is(dynamo: fx.GraphModule) -> fx.GraphModule:
    """A graph of its own, over the same weights, with all that Dynamo has noted for compilers."""
    return graph_as_it_was(dynamo)()


def graph_as_it_was(dynamo: fx.GraphModule) -> Callable[[], fx.GraphModule]:
    """What makes such a graph of `dynamo` as it is now, at any time: a module is only made, which takes far longer than
    to copy a graph, where it is asked for."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(dynamo.graph, copies)
    graph.output(result).meta.update(dynamo.graph.output_node().meta)
    for node, copied in copies.items():
        if hasattr(node, "_dynamo_source"):
            copied._dynamo_source = node._dynamo_source

    meta = dict(dynamo.meta)
    notes = {name: getattr(dynamo, name) for name in _DYNAMOS_NOTES if hasattr(dynamo, name)}

    def made() -> fx.GraphModule:
        module = fx.GraphModule(dynamo, graph)
        module.meta = dict(meta)
        for name, note in notes.items():
            setattr(module, name, note)
        return module

    return made
