"""Keep views from raising when a graph runs on the values that it was traced with.

Why: if an operator makes other strides than its fake, a traced view after it may be impossible on the actual result.
This happens in torch's own graph of a channel shuffle: its backward raises if a later convolution's weight is
channels-last (torch 2.15, CPU), as stored weights are.
How: such a view, or the first of the views that lead to it, reads the operator's result through a copy that is made
only if its strides differ from the trace.
Safe: only for views that some possible result of the operator does not allow; other readers read it as before.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import SymInt, Tensor, fx

from frx_graph.facts.layout import get_dimension_order, is_dense, make_ordered_strides
from frx_graph.facts.size_hint import get_shape_hint, get_size_hint, get_stride_hint
from frx_graph.passes.layouts.dimension_map import Order, make_plain_order
from frx_graph.passes.rewrites.layout.conversion import pin_in_aten
from frx_graph.passes.rewrites.meta_strides.fake_values import find_fake_mode, run_fakes_unguarded
from frx_graph.passes.rewrites.meta_strides.unreliable_strides import has_wrong_fake_strides, shares_operand_memory
from frx_graph.support.torch_internals import disable_current_modes, disable_python_dispatcher, pytree


def pin_views(graph: fx.Graph) -> None:
    """Let views read what they were traced with, if operators before them would make something else."""
    for node in list(graph.nodes):
        if not has_wrong_fake_strides(node.target) or not _is_dense(node):
            continue
        value = node.meta["val"]
        strides = (make_ordered_strides(get_shape_hint(value), order) for order in _list_possible_orders(node))
        results = [_make_meta_tensor(value, each) for each in strides]
        views = [reader for reader in node.users if any(_is_impossible(reader, node, result) for result in results)]
        if views:
            with run_fakes_unguarded(find_fake_mode(graph)), graph.inserting_before(node.next):
                pin = pin_in_aten(graph, node, _read_order(node.meta["val"]))
            for view in views:
                view.replace_input_with(node, pin)


def _is_dense(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return (
        isinstance(value, Tensor)
        and 0 not in get_shape_hint(value)
        and is_dense(get_shape_hint(value), get_stride_hint(value))
    )


def _list_possible_orders(node: fx.Node) -> set[Order]:
    """Return the plain order and that of the operator's operand: the fake has one, and the operator makes the other."""
    value, given = node.meta["val"], node.all_input_nodes[0].meta.get("val")
    orders = {make_plain_order(value.shape), _read_order(value)}
    if isinstance(given, Tensor) and given.dim() == value.dim():
        orders.add(_read_order(given))
    return orders


def _read_order(value: Tensor) -> Order:
    return get_dimension_order(get_shape_hint(value), get_stride_hint(value))


def _make_meta_tensor(value: Tensor, strides: Sequence[int]) -> Tensor:
    """Return a meta tensor like `value`, of the example's sizes, with these strides."""
    return torch.empty_strided(get_shape_hint(value), strides, dtype=value.dtype, device="meta")


def _is_impossible(view: fx.Node, source: fx.Node, given: Any) -> bool:
    """Return True if `view`, or a view of it, is impossible if `source` is `given`."""
    if view.target is operator.getitem:
        made = given[view.args[1]]
    elif shares_operand_memory(view) and view.all_input_nodes[0] is source:
        args, kwargs = pytree.tree_map_only(
            fx.Node, lambda node: given if node is source else _make_example(node.meta["val"]), (view.args, view.kwargs)
        )
        assert callable(view.target)
        try:
            with disable_current_modes(), disable_python_dispatcher(), torch.no_grad():
                made = view.target(*args, **kwargs)
        # An impossible view may raise any exception.
        except Exception:  # noqa: BLE001
            return True
    else:
        return False
    return any(_is_impossible(reader, view, made) for reader in view.users)


def _make_example(value: Any) -> Any:
    """Return a stand-in for a value in a call that computes nothing, with the example's numbers."""
    if isinstance(value, Tensor):
        return _make_meta_tensor(value, get_stride_hint(value))
    return get_size_hint(value) if isinstance(value, SymInt) else value
