"""Graphs that Dynamo can compile but that layout analysis has nothing true to say about."""

from __future__ import annotations

from torch import Tensor, fx

from frx_graph.support.torch_internals import FakeTensor


def unanalysable(dynamo: fx.GraphModule) -> str | None:
    """Why the graph is left alone; None for a graph that can be traced."""
    for node in dynamo.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, Tensor) and value.is_nested:
            return "it works on nested tensors, whose rows have strides of their own"
    own = [node.target for node in dynamo.graph.find_nodes(op="get_attr") if _is_real_tensor(dynamo, node)]
    if own:
        return (
            f"it holds {len(own)} tensors of its own and is not given them, as the compiled step of an optimizer does, "
            "and as a model with tensors that are no buffers does once it was frozen; register those as buffers, "
            "compile the model, and leave optimizer.step to torch.compile without frx"
        )
    return None


def _is_real_tensor(dynamo: fx.GraphModule, node: fx.Node) -> bool:
    value: object = dynamo
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return isinstance(value, Tensor) and not isinstance(value, FakeTensor)
