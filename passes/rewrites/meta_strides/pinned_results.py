"""What readers of an operator are told of its result's order, where its fake cannot be trusted with that."""

from __future__ import annotations

from torch import fx

from frx_graph.errors import RewriteError
from frx_graph.facts.layout import is_dense, strides_for_order
from frx_graph.facts.ordered_tensor import in_order
from frx_graph.facts.size_hint import shape_hint, stride_hint
from frx_graph.passes.layouts.dimension_map import Order
from frx_graph.passes.rewrites.layout.conversion import aten_conversion, aten_pin, exact_strides
from frx_graph.passes.rewrites.layout.edits import LayoutEdit, order_of, same_strides


def pin_result(edit: LayoutEdit, node: fx.Node) -> None:
    """Let what reads `node` read it with the strides that are predicted; with those that it had before where they mean
    the same."""
    value = node.meta["val"]
    if (order := edit.kernels_make.get(node.name)) is not None:
        value = in_order(value, order)
    original = edit.before.get(node, value)
    if same_strides(value, stride_hint(original)):
        value = original
    if 0 in shape_hint(value) or not is_dense(shape_hint(value), stride_hint(value)):
        return
    with edit.graph.inserting_before(node.next):
        pin = aten_pin(edit.graph, node, order_of(node, value))
        exact = exact_strides(edit.graph, pin, value)
    if exact is None and 1 in shape_hint(value):
        raise RewriteError(f"{node.name} has a size that is 1 in the example only, and strides that depend on it")
    pin = exact or pin
    edit.put_behind(node, pin, original)


def say_order(edit: LayoutEdit, node: fx.Node, order: Order) -> None:
    """Let what reads `node` take it for laid out in `order`. Inductor ignores what a copy is told, and writes none; but
    it goes by the fakes, and computes them again from the graph."""
    value = node.meta["val"]
    if not same_strides(value, strides_for_order(shape_hint(value), order)):
        with edit.graph.inserting_before(node.next):
            said = aten_conversion(edit.graph, node, order)
        edit.put_behind(node, said, edit.before.get(node, value))
