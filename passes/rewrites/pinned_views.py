"""Views that raise when a graph runs as it was traced, given what they were traced with.

Why: where an operator makes other strides than its fake, a view behind it may have been traced that is none of what
the operator makes. torch's own graph of a channel shuffle fails so in its backward where a later convolution's weight
is channels-last (torch 2.15, CPU), as stored weights are.
How: such a view reads the operator's result through a copy that is made only where that lies otherwise than traced.
Safe: only for views that cannot be of the one or the other; what else reads the result reads it as before.
"""

from __future__ import annotations

from torch import Tensor, fx

from frx_graph.facts.layout import dimension_order, is_dense, strides_for_order
from frx_graph.facts.size_hint import shape_hint, stride_hint
from frx_graph.passes.rewrites.conversion import aten_pin
from frx_graph.passes.rewrites.doubtful_strides import RESHAPING_VIEWS, makes_other_strides
from frx_graph.passes.rewrites.fake_values import fake_mode_of, running_fakes
from frx_graph.rules.dimension_map import Order, plain_order, view_strides


def pin_views(graph: fx.Graph) -> None:
    """Let views read what they were traced with, where operators before them would make something else."""
    for node in list(graph.nodes):
        if not makes_other_strides(node.target) or not _is_dense(node):
            continue
        views = [reader for reader in node.users if reader.target in RESHAPING_VIEWS and _may_raise(node, reader)]
        if views:
            with running_fakes(fake_mode_of(graph)), graph.inserting_before(node.next):
                pin = aten_pin(graph, node, _order(node))
            for view in views:
                view.replace_input_with(node, pin)


def _is_dense(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and is_dense(shape_hint(value), stride_hint(value))


def _may_raise(node: fx.Node, view: fx.Node) -> bool:
    """True where `view` is none of a plain result, or of one that lies as the operator's operand does: its fake says
    the one, and the operator makes the other."""
    shape, viewed = shape_hint(node.meta["val"]), shape_hint(view.meta["val"])
    orders = {plain_order(shape), _order(node.all_input_nodes[0])}
    return any(view_strides(shape, strides_for_order(shape, order), viewed) is None for order in orders)


def _order(node: fx.Node) -> Order:
    value = node.meta["val"]
    return dimension_order(shape_hint(value), stride_hint(value))
