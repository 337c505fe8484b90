"""Predict in which order of dimensions an operator stores its results, by its row in the operator table."""

from __future__ import annotations

from collections.abc import Sequence

from frx_graph.facts.graph_facts import OpFacts
from frx_graph.passes.layouts.dimension_map import (
    Order,
    Shape,
    canonicalize_order,
    list_memory_formats,
    make_plain_order,
    map_order,
    supports_order,
)
from frx_graph.passes.layouts.operator_layout import is_in_place
from frx_graph.rules.layout_operator import DimensionMap, Keeps, LayoutOperator


def carried_orders(
    row: LayoutOperator,
    op: OpFacts,
    shape: Shape,
    order: Order,
    results: Sequence[Shape],
    *,
    device: str = "cpu",
    inner: str = "eager",
) -> tuple[Order | None, ...]:
    """The order of each result, if the operands whose layout counts have `shape` and lie in `order`.

    `results` are the shapes of the results that carry the layout (`list_layout_results`). None where a result does not
    carry it: a view would need a copy, the kernel does not keep the order on `device` under the compiler `inner`, or
    that is not known. Raises `ValueError` if `order` is no order of `shape`.
    """
    kept = Keeps.ANY if is_in_place(op) else row.get_kept_orders(device, inner)
    if not (inner == "inductor" and row.generated) and not supports_order(row, shape, order):
        kept = Keeps.UNKNOWN
    # Whatever an operator makes out of place, in place it writes into what is there.
    kind = DimensionMap.SAME if is_in_place(op) and row.dimensions is DimensionMap.NONE else row.dimensions
    found: list[Order | None] = []
    for result in results:
        mapped = map_order(kind, op, shape, order, result)
        if kept is Keeps.UNKNOWN or mapped is None:
            carried = False
        elif kept is Keeps.CHANNELS_LAST:
            carried = _keeps_channels_last(shape, order, result)
        elif kept is Keeps.NONE:
            carried = mapped == _made(row, result)
        else:
            carried = not _grows_from_one(kind, shape, result)
        found.append(mapped if carried else None)
    return tuple(found)


def stored_orders(
    row: LayoutOperator, op: OpFacts, shape: Shape, order: Order, results: Sequence[Shape], *, device: str = "cpu"
) -> tuple[Order | None, ...]:
    """The order in which eager stores each result on `device`: the carried one, or the one that the kernel makes
    instead. None where neither is known, and where a view is impossible."""
    carried = carried_orders(row, op, shape, order, results, device=device)
    kept = Keeps.ANY if is_in_place(op) else row.get_kept_orders(device, "eager")
    if not supports_order(row, shape, order):
        return carried
    if kept is Keeps.NONE:
        return tuple(_made(row, result) for result in results)
    if kept is Keeps.CHANNELS_LAST and not _is_both(shape, order):
        return tuple(
            order if order is not None else make_plain_order(result)
            for order, result in zip(carried, results, strict=True)
        )
    return carried


def _made(row: LayoutOperator, result: Shape) -> Order:
    return (
        canonicalize_order(result, row.makes)
        if row.makes is not None and len(row.makes) == len(result)
        else make_plain_order(result)
    )


def _keeps_channels_last(shape: Shape, order: Order, result: Shape) -> bool:
    """A kernel that asks whether its operand is channels-last can only be foreseen where that is not also plain."""
    if _is_both(shape, order):
        return _is_both(result, make_plain_order(result))
    return canonicalize_order(shape, order) in list_memory_formats(shape)


def _is_both(shape: Shape, order: Order) -> bool:
    """True if `order` is plain as well as channels-last."""
    return len(shape) in (4, 5) and list_memory_formats(shape) == {canonicalize_order(shape, order)}


def _grows_from_one(kind: DimensionMap, shape: Shape, result: Shape) -> bool:
    """A dimension that had no place among the operand's has got a size: its place is not known."""
    if kind is not DimensionMap.SAME:
        return False
    return any(before == 1 < after for before, after in zip(shape, result, strict=True))
