"""Copies of a value into another order, in a Dynamo graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.facts.layout import CHANNELS_LAST_ORDER, dimension_order, inverse_order, strides_for_order
from frx_graph.passes.layouts.dimension_map import Order
from frx_graph.passes.rewrites.layout.conversion import MEMORY_FORMATS


def order_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> Order | None:
    """The order with exactly these strides, in dimensions of size 1 as well; None for sizes that only values tell."""
    if not all(isinstance(number, int) for number in (*shape, *strides)):
        return None
    order = dimension_order(shape, strides)
    known = (tuple(range(len(shape))), CHANNELS_LAST_ORDER.get(len(shape), order), order)
    return next((candidate for candidate in known if strides_for_order(shape, candidate) == strides), None)


def converted(graph: fx.Graph, node: fx.Node, order: Order) -> fx.Node:
    """A copy of `node` in `order` at the insertion point."""
    rank = len(order)
    if order == tuple(range(rank)):
        return call(graph, torch.ops.aten.clone.default, node, memory_format=torch.contiguous_format)
    if rank in MEMORY_FORMATS and order == CHANNELS_LAST_ORDER[rank]:
        return call(graph, torch.ops.aten.clone.default, node, memory_format=MEMORY_FORMATS[rank])
    stored = call(graph, torch.ops.aten.permute.default, node, list(order))
    with graph.inserting_after(stored):
        copied = call(graph, torch.ops.aten.clone.default, stored, memory_format=torch.contiguous_format)
    with graph.inserting_after(copied):
        return call(graph, torch.ops.aten.permute.default, copied, inverse_order(order))


def call(graph: fx.Graph, target: Any, source: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
    """`target` of `source` at the insertion point, with its example where `source` has one."""
    node = graph.call_function(target, (source, *args), kwargs)
    value = source.meta.get("example_value")
    if isinstance(value, Tensor):
        node.meta["example_value"] = target(value, *args, **kwargs)
    return node
