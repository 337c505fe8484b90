"""Whether a call of a graph may be computed twice."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from frx_graph.capture.graph_signature import PLAIN_TENSORS
from frx_graph.support.torch_internals import HigherOrderOperator, OpOverload, OpOverloadPacket, pytree

_TORCHS_OWN = frozenset({"aten", "prims"})
_MODULES = frozenset({"torch", "_operator", "operator", "builtins", "math"})


def repeatable(dynamo: fx.GraphModule) -> bool:
    """Whether all that is called is torch's own, on plain tensors, and none of it communicates: of others nobody knows
    what they do. A graph with tensors of its own, as that of an optimizer's step, may write into them, where nobody who
    looks at its inputs sees it."""
    graphs = (module.graph for module in dynamo.modules() if isinstance(module, fx.GraphModule))
    nodes = [node for graph in graphs for node in graph.nodes]
    values = pytree.tree_leaves([node.meta.get("example_value") for node in nodes])
    plain = all(type(value) in PLAIN_TENSORS for value in values if isinstance(value, Tensor))
    owns = any(True for module in dynamo.modules() for _ in (*module._parameters.values(), *module._buffers.values()))
    return plain and not owns and all(torchs_own(node.target) for node in nodes if node.op == "call_function")


def torchs_own(function: Any) -> bool:
    """Whether what a graph calls is torch's or Python's, and no kernel of somebody's."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        return str(function).partition(".")[0] in _TORCHS_OWN
    if isinstance(function, HigherOrderOperator):
        return "triton" not in function.name()
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.partition(".")[0] in _MODULES
