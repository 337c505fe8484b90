"""Inputs that come in other strides than a graph was traced with, brought back before anything reads them.

A backward gets what its forward has saved, in whatever order that left it. Where the backward cannot be laid out for
that, it reads copies, and runs as it was traced.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx

from frx_graph.facts.layout import dimension_order, is_dense, is_expanded, storage_extent
from frx_graph.facts.size_hint import shape_hint, size_hint, stride_hint
from frx_graph.passes.rewrites.layout.conversion import aten_conversion, exact_strides
from frx_graph.passes.rewrites.meta_strides.fake_values import fake_mode_of, running_fakes


def read_as_traced(graph: fx.Graph, given: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Let all that reads an input of `given`, which holds by name what they were, read a copy with those strides.
    Returns the names of the copies. What was expanded stays as it comes; what had gaps and symbolic sizes gets its
    order back, which is what kernels go by, without the gaps."""
    if not given:
        return ()
    copies: list[str] = []
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with running_fakes(fake_mode_of(graph)), graph.inserting_before(first):
        for node in graph.find_nodes(op="placeholder"):
            copy = _copy(graph, node, given[node.name]) if node.name in given else None
            if copy is not None:
                copies.append(copy.name)
    return tuple(copies)


def _copy(graph: fx.Graph, node: fx.Node, traced: Tensor) -> fx.Node | None:
    readers = list(node.users)
    shape, strides = tuple(traced.shape), tuple(traced.stride())
    hints = shape_hint(traced), stride_hint(traced)
    if is_expanded(*hints):
        return None
    if is_dense(*hints) or not all(isinstance(n, int) for n in (*shape, *strides)):
        copy = aten_conversion(graph, node, dimension_order(*hints))
        if is_dense(*hints):
            copy = exact_strides(graph, copy, traced) or copy
    else:
        offset = size_hint(traced.storage_offset())
        size = [offset + storage_extent(shape, strides)]
        room = graph.call_function(torch.ops.aten.new_empty.default, (node, size))
        place = graph.call_function(torch.ops.aten.as_strided.default, (room, shape, strides, offset))
        copy = graph.call_function(torch.ops.aten.copy_.default, (place, node))
        room.meta["val"] = traced.new_empty(size)
        copy.meta["val"] = place.meta["val"] = traced
    for reader in readers:
        reader.replace_input_with(node, copy)
    return copy
