"""A backward's results under Inductor keep the strides that they were traced with.

Inductor computes the strides of a backward's values again, from what the forward has saved. Where the forward saves in
another order than eager, gradients would be returned in that order, or, with dimensions of size 1, in strides that no
eager program has: a 1x1 convolution of 8 channels gives its weight's gradient strides (8, 1, 8, 8) instead of
(8, 1, 1, 1). So the strides are noted in the joint graph, where they are eager's, and told to Inductor in the backward.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from frx_graph.support.torch_internals import CustomGraphPass, pytree

_NOTED = "frx_traced_strides"
"""Key in the meta of nodes of a joint graph, which its forward and backward take over."""
_TOLD = "original_output_strides"
"""Key in the meta of an output node under which Inductor keeps the strides that it returns visible outputs with."""


class NoteStrides(CustomGraphPass):
    """Notes, in a joint graph, the strides of all that it returns. Run before any pass that changes strides."""

    def __call__(self, graph: fx.Graph) -> None:
        """Leaves the graph itself as it is."""
        for node in pytree.tree_leaves(graph.output_node().args):
            value = node.meta.get("val") if isinstance(node, fx.Node) else None
            if isinstance(value, Tensor):
                node.meta[_NOTED] = tuple(value.stride())

    def uuid(self) -> Any:
        """Never another one: nothing is changed, and the code of a plan is in the plan's own."""
        return "frx notes strides"


def noted_strides(node: fx.Node) -> tuple[Any, ...] | None:
    """The strides that were noted for this node; None where none were."""
    noted: tuple[Any, ...] | None = node.meta.get(_NOTED)
    return noted


def return_noted_strides(graph: fx.Graph) -> None:
    """Tell Inductor to return the outputs of a graph with the strides that were noted, its own choice where none were.

    It obeys to the letter for results of operators, and for views up to the strides of dimensions of size 1.
    """
    output = graph.output_node()
    told = output.meta.get(_TOLD)
    returned = output.args[0]
    if isinstance(told, list) and isinstance(returned, (list, tuple)) and len(told) == len(returned):
        noted = [noted_strides(node) if isinstance(node, fx.Node) else None for node in returned]
        told[:] = [own if strides is None else strides for own, strides in zip(told, noted, strict=True)]
