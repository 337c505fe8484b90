"""List the operators of a functional graph that take operands in other orders, and the orders that values may have.

An order names dimensions from the outermost to the innermost in memory. The orders of a value are found by walking out
from the anchors. The orders that a convolution prefers are carried through every operator that passes an order on, with
the dimensions moved as the operator moves them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from frx_graph.facts.graph_facts import GraphFacts, OpFacts, ValueFacts, ValueRef
from frx_graph.facts.layout import Layout, get_dimension_order
from frx_graph.facts.operator_families import GATHERS, TRACED_COPIES
from frx_graph.passes.layouts.dimension_map import (
    Order,
    canonicalize_order,
    find_dimension_sources,
    list_memory_formats,
    map_order,
    supports_order,
)
from frx_graph.passes.layouts.operator_layout import (
    find_layout_operator,
    is_converted_once,
    list_layout_operands,
    list_layout_results,
)
from frx_graph.rules.layout_operator import DimensionMap, Keeps, LayoutOperator, LayoutRole

MOST_ORDERS = 4
"""Orders considered for one value; further ones that reach it from anchors are left out."""


@dataclass(frozen=True)
class OrderedOp:
    """One operator that works in several orders. Its own order decides those of `operands` and `results`; `dimensions`
    is the map. `told` marks a copy with an explicit memory format, which it need not keep. `viewed` are results without
    an order that can be views of operands in some orders only."""

    op: OpFacts
    row: LayoutOperator
    operands: tuple[ValueFacts, ...]
    results: tuple[ValueFacts, ...]
    told: bool = False
    viewed: tuple[ValueFacts, ...] = ()

    @property
    def anchor(self) -> bool:
        """True if its speed depends on the order, or may."""
        return self.row.role is LayoutRole.ANCHOR

    @property
    def resizes(self) -> bool:
        """True for the gathers of upsampling."""
        return self.row is _RESIZING

    @property
    def keeps_dimensions(self) -> bool:
        """True if dimension i of each value is dimension i of every other."""
        return self.row.dimensions is DimensionMap.SAME

    @cached_property
    def values(self) -> tuple[ValueFacts, ...]:
        """Operands, then results."""
        return (*self.operands, *self.results)

    @cached_property
    def _telling(self) -> ValueFacts:
        """The value whose order is the label: the one with most dimensions longer than 1."""
        if not self.keeps_dimensions:
            return self.operands[0]
        return max((*self.results, *self.operands), key=lambda value: sum(n > 1 for n in value.shape))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The dimensions that a label orders."""
        return self._telling.shape

    @cached_property
    def current(self) -> Order:
        """The present label."""
        return compute_current_order(self._telling)

    def map_label_to_order(self, value: ValueFacts, label: Order) -> Order | None:
        """Return the order of `value` if the operator has `label`; None if that is impossible."""
        if self._is_labelled(value):
            return canonicalize_order(value.shape, label)
        return map_order(self.row.dimensions, self.op, self.operands[0].shape, label, value.shape)

    def map_order_to_label(self, value: ValueFacts, order: Order) -> Order | None:
        """Return the label that gives `value` this order, as `map_label_to_order` would; None if there is none."""
        if self._is_labelled(value):
            return canonicalize_order(self.shape, order)
        return _invert_order(self, value, order)

    def _is_labelled(self, value: ValueFacts) -> bool:
        """Return True if a label is an order of the value's own dimensions."""
        return self.keeps_dimensions or any(value.name == operand.name for operand in self.operands)


def list_members(facts: GraphFacts, inner: str, may_change: Callable[[OpFacts], bool]) -> tuple[OrderedOp, ...]:
    """Return all operators that pass an order on under the compiler `inner`, among those that `may_change`."""
    found = (_make_member(op, facts, inner) for op in facts.ops if may_change(op))
    return tuple(member for member in found if member is not None)


def has_order(value: ValueFacts) -> bool:
    """Return True if at least two dimensions have a place in memory, and none is expanded."""
    return sum(n > 1 for n in value.shape) > 1 and 0 not in value.shape and value.layout is not Layout.EXPANDED


def compute_current_order(value: ValueFacts) -> Order:
    """Return the present order of the value in memory, gaps aside."""
    return get_dimension_order(value.shape, value.strides)


def _make_member(op: OpFacts, facts: GraphFacts, inner: str) -> OrderedOp | None:
    told = op.operator in TRACED_COPIES and op.kwargs.get("memory_format") is not None
    row = _COPY if told else _RESIZING if _is_resizing(op, facts) else find_layout_operator(op)
    if row.role not in (LayoutRole.ANCHOR, LayoutRole.AGNOSTIC) or row.dimensions in _NOT_FOLLOWED:
        return None
    operands = [facts.values[name] for name in list_layout_operands(op, row) if name in facts.values]
    results = [facts.values[name] for name in list_layout_results(op, row) if name in facts.values]
    if not operands:
        return None
    rank = len((results or operands)[0].shape)
    if row.dimensions is DimensionMap.SAME:
        operands = [value for value in operands if len(value.shape) == rank]
        if row.operands is None and results:
            # A broadcast operand does not affect the order of the result.
            operands = [value for value in operands if value.shape == results[0].shape]
    elif not operands[0].dense:
        return None
    operands = [value for value in operands if has_order(value) and not is_converted_once(value)]
    viewed = [value for value in results if row.dimensions is DimensionMap.REGROUP and not has_order(value)]
    results = [value for value in results if has_order(value)]
    if not operands and (not results or row.dimensions is not DimensionMap.SAME):
        return None
    if row.dimensions is DimensionMap.REGROUP and not results:
        # All dimensions become one, which has no order, but whose elements do.
        return None
    kept = row.get_kept_orders((results or operands)[0].device.type, inner)
    if kept not in (Keeps.ANY, Keeps.CHANNELS_LAST):
        return None
    return OrderedOp(op, row, tuple(operands), tuple(results), told, tuple(viewed))


_COPY = LayoutOperator(operator="any.copy", role=LayoutRole.AGNOSTIC, keeps=Keeps.ANY)
_RESIZING = LayoutOperator(operator="any.resizing", role=LayoutRole.ANCHOR, keeps=Keeps.UNKNOWN)
"""A gather that resizes images: eager's kernel does not keep their order, a loop that a compiler writes may."""
_NOT_FOLLOWED = frozenset({DimensionMap.NONE, DimensionMap.REDUCE, DimensionMap.EXPAND})


def _is_resizing(op: OpFacts, facts: GraphFacts) -> bool:
    """Return True for a gather at a grid of places, as of upsampling: the result's dimension i is the image's."""
    if op.operator not in GATHERS:
        return False
    image, indices = op.args[:2]
    if not isinstance(image, ValueRef) or not isinstance(indices, tuple):
        return False
    if indices[:2] != (None, None) or len(indices) != len(facts.values[image.name].shape):
        return False
    grid = [facts.values[place.name] for place in indices[2:] if isinstance(place, ValueRef)]
    # Each index runs along a different dimension: (height, 1) and (width).
    return len(grid) == len(indices) - 2 > 0 and all(
        place.dtype in (torch.int32, torch.int64)
        and len(place.shape) == len(grid) - axis
        and all(n == 1 for n in place.shape[1:])
        for axis, place in enumerate(grid)
    )


def find_possible_orders(
    members: Sequence[OrderedOp], preferred: Callable[[OrderedOp], Sequence[Order]], inner: str
) -> Mapping[str, tuple[Order, ...]]:
    """Return the orders that every value may have, the present one first; members ask for the `preferred` labels."""
    orders: dict[str, list[Order]] = {}
    touching: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        for value in member.values:
            orders.setdefault(value.name, [compute_current_order(value)])
            touching.setdefault(value.name, []).append(index)
    waiting = deque((index, label) for index, member in enumerate(members) for label in preferred(member))
    seen = set(waiting)
    while waiting:
        index, label = waiting.popleft()
        member = members[index]
        if not supports_label(member, label, inner):
            continue
        for value in member.values:
            order = member.map_label_to_order(value, label)
            if order is None or order in orders[value.name] or len(orders[value.name]) >= MOST_ORDERS:
                continue
            orders[value.name].append(order)
            for neighbour in touching[value.name]:
                asked = members[neighbour].map_order_to_label(value, order)
                if asked is not None and (neighbour, asked) not in seen:
                    seen.add((neighbour, asked))
                    waiting.append((neighbour, asked))
    return {name: tuple(found) for name, found in orders.items()}


def supports_label(member: OrderedOp, label: Order, inner: str) -> bool:
    """Return True if the operator keeps `label`: reads all its operands in it, and makes its results so."""
    if not supports_order(member.row, member.shape, label):
        return False
    is_format = canonicalize_order(member.shape, label) in list_memory_formats(member.shape)
    if not is_format and member.row.get_kept_orders(member.values[0].device.type, inner) is Keeps.CHANNELS_LAST:
        return False
    return all(member.map_label_to_order(value, label) is not None for value in (*member.values, *member.viewed))


def _invert_order(member: OrderedOp, value: ValueFacts, order: Order) -> Order | None:
    """Return the first operand's order from a result's; None if a dimension is lost on the way."""
    first = member.operands[0]
    kind = member.row.dimensions
    if kind is DimensionMap.REGROUP:
        return map_order(kind, member.op, value.shape, order, first.shape)
    sources = find_dimension_sources(kind, member.op, first.shape, len(value.shape))
    if sources is None:
        return None
    known = [source for dim in order if (source := sources[dim]) is not None]
    lost = [dim for dim in range(len(first.shape)) if dim not in known]
    if any(first.shape[dim] > 1 for dim in lost):
        return None
    return canonicalize_order(first.shape, (*known, *lost))
