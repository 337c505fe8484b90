"""Change the orders of a graph's values step by step, and undo the changes on request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from frx_graph.errors import RewriteError
from frx_graph.facts.layout import CHANNELS_LAST_ORDER, get_dimension_order, is_dense, is_expanded, make_ordered_strides
from frx_graph.passes.layouts.dimension_map import Order, make_plain_order, match_memory_format
from frx_graph.passes.rewrites.layout.conversion import Convert, convert_in_aten, pin_in_aten, restore_exact_strides
from frx_graph.support.size_hint import get_shape_hint, get_stride_hint


@dataclass
class LayoutEdit:
    """A layout change of a graph in progress, and the data to undo it. `original` are the nodes before; `convert` adds
    copies. `before` holds the values that changed nodes had, `behind` the nodes that depend on them; `pinned` maps
    nodes inserted behind others to these. See `relayout` for the rest."""

    graph: fx.Graph
    convert: Convert
    original: frozenset[fx.Node]
    pins: bool
    doubtful: Collection[str]
    before: dict[fx.Node, Any] = field(default_factory=dict)
    behind: set[fx.Node] = field(default_factory=set)
    conversions: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = field(default_factory=dict)
    rerouted: list[tuple[fx.Node, fx.Node, fx.Node]] = field(default_factory=list)
    freed: dict[fx.Node, Any] = field(default_factory=dict)
    pinned: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def find_original_name(self, node: fx.Node) -> str:
        """Return the name that the value had in the original graph."""
        return self.pinned.get(node, node).name

    def has_uncertain_strides(self, node: fx.Node) -> bool:
        """Return True if the original strides of the value at run time are uncertain."""
        return self.pins and self.find_original_name(node) in self.doubtful

    def set_value(self, node: fx.Node, value: Any) -> None:
        """Replace the node's value."""
        self.before.setdefault(node, node.meta["val"])
        node.meta["val"] = value

    def reroute(self, reader: fx.Node, source: fx.Node, conversion: fx.Node) -> None:
        """Let `reader` read `conversion` in the place of `source`."""
        reader.replace_input_with(source, conversion)
        self.rerouted.append((reader, source, conversion))

    def free_copy(self, node: fx.Node) -> None:
        """Let a copy with an explicit memory format keep its source's order."""
        self.freed[node] = node.kwargs
        node.kwargs = {**node.kwargs, "memory_format": torch.preserve_format}

    def convert_for(self, source: fx.Node, order: Order, reader: fx.Node) -> fx.Node:
        """Let `reader` read one conversion of `source`; raise `RewriteError` if no copy can have that order."""
        shape = get_shape_hint(source.meta["val"])
        if order not in (make_plain_order(shape), CHANNELS_LAST_ORDER.get(len(shape))):
            order = match_memory_format(shape, order)
        strides = make_ordered_strides(shape, order)
        conversion = self.conversions.get((source, strides))
        if conversion is None:
            with self.graph.inserting_before(reader):
                conversion = self.conversions[source, strides] = self.convert(self.graph, source, order)
            if not has_same_strides(conversion.meta["val"], strides):
                raise RewriteError(f"{source.name} cannot be brought to strides {strides}")
        self.reroute(reader, source, conversion)
        return conversion

    def insert_behind(self, node: fx.Node, stand_in: fx.Node, original: Any) -> None:
        """Let all readers of `node`, whose value was `original`, read `stand_in`."""
        self.pinned[stand_in] = node
        self.before[stand_in] = original
        for reader in [reader for reader in node.users if reader in self.original]:
            self.reroute(reader, node, stand_in)

    def undo(self) -> None:
        """Restore the original graph."""
        for reader, source, conversion in reversed(self.rerouted):
            reader.replace_input_with(conversion, source)
        for node, kwargs in self.freed.items():
            node.kwargs = kwargs
        for node in reversed(self.graph.nodes):
            if node not in self.original:
                self.graph.erase_node(node)
        for node, value in self.before.items():
            if node.op != "placeholder":
                node.meta["val"] = value


def has_same_strides(value: Tensor, strides: Collection[int]) -> bool:
    """Return True if `value` has these strides (hints if symbolic), dimensions of size 1 aside."""
    pairs = zip(get_shape_hint(value), get_stride_hint(value), strides, strict=True)
    return 0 in get_shape_hint(value) or all(n == 1 or have == want for n, have, want in pairs)


def compute_copy_order(node: fx.Node, value: Tensor, *, gaps: bool = False) -> Order:
    """Return the order in which a copy of `node` has the strides of `value`, or with `gaps`, these without gaps."""
    shape, strides = get_shape_hint(value), get_stride_hint(value)
    if is_expanded(shape, strides) or not (gaps or is_dense(shape, strides)):
        raise RewriteError(f"{node.name} has gaps in memory that a copy would not have")
    return get_dimension_order(shape, strides)


def pin_result(edit: LayoutEdit, node: fx.Node) -> None:
    """Let readers of `node` read it with the predicted strides, or with its former ones if those are equivalent."""
    value = node.meta["val"]
    original = edit.before.get(node, value)
    if has_same_strides(value, get_stride_hint(original)):
        value = original
    if 0 in get_shape_hint(value) or not is_dense(get_shape_hint(value), get_stride_hint(value)):
        return
    with edit.graph.inserting_before(node.next):
        pin = pin_in_aten(edit.graph, node, compute_copy_order(node, value))
        exact = restore_exact_strides(edit.graph, pin, value)
    if exact is None and 1 in get_shape_hint(value):
        raise RewriteError(f"{node.name} has a size that is 1 in the example only, and strides that depend on it")
    pin = exact or pin
    edit.insert_behind(node, pin, original)


def declare_order(edit: LayoutEdit, node: fx.Node, order: Order) -> None:
    """Let readers of `node` take it for laid out in `order`.

    Inductor writes no such copy, but follows the fakes, and computes them again from the graph.
    """
    value = node.meta["val"]
    if not has_same_strides(value, make_ordered_strides(get_shape_hint(value), order)):
        with edit.graph.inserting_before(node.next):
            said = convert_in_aten(edit.graph, node, order)
        edit.insert_behind(node, said, edit.before.get(node, value))
