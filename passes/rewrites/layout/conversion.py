"""Add operators that copy a value into another order: one kind for Inductor, one for everything that runs ATen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, fx

from frx_graph.facts.layout import CHANNELS_LAST_ORDER, get_dimension_order, invert_order, make_ordered_strides
from frx_graph.passes.layouts.dimension_map import Order, make_plain_order
from frx_graph.passes.rewrites.meta_strides.fake_values import call_op, has_fixed_sizes
from frx_graph.support.size_hint import get_shape_hint, get_stride_hint
from frx_graph.support.torch_internals import OpOverload

Convert: TypeAlias = Callable[[fx.Graph, fx.Node, Order], fx.Node]
"""Adds a copy of a value in a dense order at the graph's insertion point. Each new node has its value in `meta["val"]`.
The caller has entered the fake mode."""

MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Torch's name for channels-last, by rank."""


def convert_in_aten(graph: fx.Graph, source: fx.Node, order: Order) -> fx.Node:
    """Add a copy that every backend runs as it is written."""
    return _copy_to_order(graph, torch.ops.aten.clone.default, source, order)


def pin_in_aten(graph: fx.Graph, source: fx.Node, order: Order) -> fx.Node:
    """Add a copy that is made only if `source`, when it is run, is not in `order` after all."""
    return _copy_to_order(graph, torch.ops.aten.contiguous.default, source, order)


def copy_in_aten(graph: fx.Graph, source: fx.Node) -> fx.Node:
    """Add a copy with the strides of `source`, in new memory."""
    return call_op(graph, torch.ops.aten.clone.default, source, memory_format=torch.preserve_format)


def _copy_to_order(graph: fx.Graph, copy: OpOverload, source: fx.Node, order: Order) -> fx.Node:
    rank = len(order)
    if order == make_plain_order(order):
        return call_op(graph, copy, source, memory_format=torch.contiguous_format)
    if rank in MEMORY_FORMATS and order == CHANNELS_LAST_ORDER[rank]:
        return call_op(graph, copy, source, memory_format=MEMORY_FORMATS[rank])
    stored = _add_permute(graph, source, list(order))
    return _add_permute(graph, call_op(graph, copy, stored, memory_format=torch.contiguous_format), invert_order(order))


def restore_exact_strides(graph: fx.Graph, source: fx.Node, wanted: Tensor) -> fx.Node | None:
    """Add a view of `source` with the strides of `wanted` in dimensions of size 1, too.

    There strides mean nothing but can be seen; the two differ nowhere else. None if sizes are symbolic and the strides
    are not those of an order, or if a size is 1 in the example only.
    """
    hints = get_shape_hint(wanted)
    for order in (
        get_dimension_order(hints, get_stride_hint(wanted)),
        CHANNELS_LAST_ORDER.get(wanted.dim(), make_plain_order(hints)),
    ):
        # Without elements there is nothing to move, and nothing that a view could lose.
        if make_ordered_strides(hints, order) == get_stride_hint(wanted) and 0 not in hints:
            break
    else:
        if not has_fixed_sizes(wanted):
            return None
        return call_op(graph, torch.ops.aten.as_strided.default, source, list(wanted.shape), list(wanted.stride()))
    # A dimension that is taken away and put back has the stride that it would have in a new tensor.
    ones = [place for place, dim in enumerate(order) if hints[dim] == 1]
    if not all(isinstance(wanted.shape[order[place]], int) for place in ones):
        return None
    plain = order == make_plain_order(hints)
    node = source if plain else _add_permute(graph, source, list(order))
    node = call_op(graph, torch.ops.aten.squeeze.dims, node, ones)
    for place in ones:
        node = call_op(graph, torch.ops.aten.unsqueeze.default, node, place)
    if not plain:
        node = _add_permute(graph, node, invert_order(order))
    # In the memory of `source`, which is not that of `wanted`.
    made: Tensor = node.meta["val"]
    node.meta["val"] = made.as_strided(wanted.shape, wanted.stride(), made.storage_offset())
    return node


def _add_permute(graph: fx.Graph, source: fx.Node, order: list[int]) -> fx.Node:
    return call_op(graph, torch.ops.aten.permute.default, source, order)


def convert_in_inductor(graph: fx.Graph, source: fx.Node, order: Order) -> fx.Node:
    """Add Inductor's own prim, which fuses with the operator that made the value, and may cost nothing.

    Its strides are numbers: symbolic sizes get a plain copy, which its readers lay out.
    """
    value = source.meta["val"]
    if not has_fixed_sizes(value):
        return convert_in_aten(graph, source, order)
    strides = make_ordered_strides(get_shape_hint(value), order)
    return call_op(graph, torch.ops.prims.inductor_force_stride_order.default, source, strides)
