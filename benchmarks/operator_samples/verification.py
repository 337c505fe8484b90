"""Holds the rows of the operator table against what torch was seen to do. Pure: one observation serves for many rows.

A row is contradicted by what it says wrongly, by what it leaves unsaid although every call agrees on it, and by never
having been tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from frx_graph.facts.layout import CHANNELS_LAST_ORDER
from frx_graph.passes.layouts.dimension_map import (
    Shape,
    canonicalize_order,
    find_dimension_sources,
    make_plain_order,
    map_order,
    supports_order,
)
from frx_graph.rules.layout_operator import DimensionMap, Keeps, LayoutOperator, LayoutRole, Needs
from operator_samples.observation import Observation
from operator_samples.stored_orders import stored_orders


def contradictions(row: LayoutOperator, observations: Sequence[Observation], *, device: str = "cpu") -> tuple[str, ...]:
    """What the row says and torch does not do, each as one line; empty where all agree."""
    found = [
        *_role_contradictions(row, observations),
        *_dimension_contradictions(row, observations),
        *_wider_than_seen(row, observations),
        *_order_contradictions(row, observations, device),
        *_unsaid(row, observations, device),
    ]
    return tuple(dict.fromkeys(found))


def _role_contradictions(row: LayoutOperator, observations: Sequence[Observation]) -> Iterator[str]:
    """An anchor is an operator whose flops torch counts, a pooling, or an attention (torch counts the flops of that on
    the CPU from 2.15 on); the other roles follow from the dimensions."""
    named = "_pool" in row.operator or "attention" in row.operator
    anchor = named or any(seen.arithmetic for seen in observations)
    if anchor != (row.role is LayoutRole.ANCHOR):
        yield f"{row.role}, but torch {'counts' if anchor else 'does not count'} its flops"
    if (row.role is LayoutRole.REDUCTION) != (row.dimensions is DimensionMap.REDUCE):
        yield f"{row.role} with the dimensions `{row.dimensions}`"
    if not anchor and (row.role is LayoutRole.BARRIER) != (row.dimensions is DimensionMap.NONE):
        yield f"{row.role} with the dimensions `{row.dimensions}`"


def _dimension_contradictions(row: LayoutOperator, observations: Sequence[Observation]) -> Iterator[str]:
    """Sizes: each dimension of a result has that of the operand's dimension that it is. Where an operator may change
    sizes, some call leaves each of them as it is."""
    if row.dimensions is DimensionMap.NONE:
        return
    if row.dimensions is DimensionMap.REGROUP:
        for seen in observations:
            for result in seen.results:
                if math.prod(result.shape) != math.prod(seen.shape):
                    yield f"`regroup` does not turn {seen.shape} into {result.shape}"
        return
    unchanged: dict[int, set[int]] = {}
    for seen in observations:
        if not seen.results:
            continue
        rank = len(seen.shape)
        for result in seen.results:
            sources = find_dimension_sources(row.dimensions, seen.op, seen.shape, len(result.shape))
            if sources is None or len(sources) != len(result.shape):
                yield f"`{row.dimensions}` does not turn {seen.shape} into {result.shape}"
                return
            for dim, source in enumerate(sources):
                before = 1 if source is None else seen.shape[source]
                if before == result.shape[dim] and (source is None or seen.shape.count(before) == 1):
                    unchanged.setdefault(rank, set()).add(dim)
                elif before != result.shape[dim] and not _may_resize(row.dimensions, source, before, result.shape[dim]):
                    yield f"`{row.dimensions}` does not turn {seen.shape} into {result.shape}"
                    return
    if row.dimensions is DimensionMap.SAME:
        for rank, dims in unchanged.items():
            if len(dims) < rank:
                yield f"no call of rank {rank} leaves dimensions {sorted(set(range(rank)) - dims)} their sizes"


def _may_resize(kind: DimensionMap, source: int | None, before: int, after: int) -> bool:
    if kind is DimensionMap.REDUCE:
        return after == 1
    if kind is DimensionMap.EXPAND:
        return before == 1
    return kind is DimensionMap.SAME or (kind is DimensionMap.STACK and source is None)


def _order_contradictions(row: LayoutOperator, observations: Sequence[Observation], device: str) -> Iterator[str]:
    tried = False
    for seen in observations:
        call = f"{seen.op.target}, {seen.shape} in order {seen.order}"
        # What a view refuses is seen by the sizes of the same call on another order.
        shapes = _result_shapes(seen, observations)
        said = stored_orders(row, seen.op, seen.shape, seen.order, shapes, device=device)
        right = supports_order(row, seen.shape, seen.order)
        if seen.refused:
            if any(order is not None for order in said):
                yield f"{call}: {said} is said, and it does not run"
            continue
        if len(said) != len(seen.results):
            yield f"{call}: has {len(seen.results)} results"
        for order, result in zip(said, seen.results, strict=False):
            if result.values is False and right:
                yield f"{call}: other values than from plain operands"
            if order is None:
                continue
            tried = True
            if result.order != order:
                yield f"{call}: {order} is said, {result.order} made"
    if not tried and row.keeps is not Keeps.UNKNOWN:
        yield "never tried"


def _unsaid(row: LayoutOperator, observations: Sequence[Observation], device: str) -> Iterator[str]:
    """A row must not say less than what is seen: that an operator keeps only channels-last, or nothing, where it keeps
    every order that was tried; nor that a view needs a copy where it is made."""
    # That a memory format is needed was true of older kernels than the ones at hand may be.
    if row.needs is Needs.LAST_INNERMOST and not any(
        result.values is False
        for seen in observations
        if not supports_order(row, seen.shape, seen.order)
        for result in seen.results
    ):
        yield "the last dimension need not be innermost"
    if row.dimensions is DimensionMap.NONE:
        same = row.model_copy(update={"dimensions": DimensionMap.SAME})
        if row.role is LayoutRole.ANCHOR and not any(_dimension_contradictions(same, observations)):
            yield "the result has the operand's dimensions"
        return
    for keeps in (Keeps.CHANNELS_LAST, Keeps.ANY):
        if row.needs is Needs.MEMORY_FORMAT and keeps is Keeps.ANY:
            continue  # of the orders that it needs, these are all
        if _narrower(row.keeps, keeps) and _all_kept(row, keeps, observations):
            yield f"`{row.keeps}` is said, `{keeps}` seen"
    if row.keeps is Keeps.CHANNELS_LAST and not any(_is_channels_last(seen) for seen in observations):
        yield "channels-last was never tried"
    if row.keeps is Keeps.ANY and row.dimensions is DimensionMap.REGROUP:
        for seen in observations:
            shapes = _result_shapes(seen, observations)
            said = stored_orders(row, seen.op, seen.shape, seen.order, shapes, device=device)
            if any(order is None and result.view for order, result in zip(said, seen.results, strict=False)):
                yield f"{seen.op.target}, {seen.shape} in order {seen.order}: is a view"


_NARROWER = {
    DimensionMap.REGROUP: (DimensionMap.SAME, DimensionMap.UNSQUEEZE, DimensionMap.SQUEEZE),
    DimensionMap.EXPAND: (DimensionMap.SAME,),
    DimensionMap.SQUEEZE: (DimensionMap.SAME,),
    DimensionMap.STACK: (DimensionMap.UNSQUEEZE,),
}
"""Maps that say more than another, and can be wrong where that one is not: what leaves every dimension as it is also
regroups them."""


def _wider_than_seen(row: LayoutOperator, observations: Sequence[Observation]) -> Iterator[str]:
    for kind in _NARROWER.get(row.dimensions, ()):
        narrower = row.model_copy(update={"dimensions": kind})
        if observations and not any(_dimension_contradictions(narrower, observations)):
            yield f"`{row.dimensions}` is said, `{kind}` seen"


def _narrower(said: Keeps, seen: Keeps) -> bool:
    if said is Keeps.NONE:
        return True
    return said is Keeps.CHANNELS_LAST and seen is Keeps.ANY


def _all_kept(row: LayoutOperator, keeps: Keeps, observations: Sequence[Observation]) -> bool:
    """True if every result of another than the plain order lies in the mapped one; for channels-last, of that order."""
    told = 0
    for seen in observations:
        if seen.order == make_plain_order(seen.shape) or (keeps is Keeps.CHANNELS_LAST and not _is_channels_last(seen)):
            continue
        for result in seen.results:
            mapped = map_order(row.dimensions, seen.op, seen.shape, seen.order, result.shape)
            if mapped is None or mapped == make_plain_order(result.shape):
                continue
            if mapped != result.order:
                return False
            told += 1
    return told > 0


def _is_channels_last(seen: Observation) -> bool:
    rank = len(seen.shape)
    if rank not in (4, 5):
        return False
    return seen.order == canonicalize_order(seen.shape, CHANNELS_LAST_ORDER[rank]) != make_plain_order(seen.shape)


def _result_shapes(seen: Observation, observations: Sequence[Observation]) -> tuple[Shape, ...]:
    if not seen.refused:
        return tuple(result.shape for result in seen.results)
    for other in observations:
        if other.op is seen.op and not other.refused:
            return tuple(result.shape for result in other.results)
    return ()
