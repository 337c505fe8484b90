"""Holds the rows of the operator table against torch: sample calls on operands in every dimension order.

`observe` runs the calls; `contradictions` compares a row with what was seen and is pure, so that one observation serves
for many rows. A row is contradicted by what it says wrongly, by what it leaves unsaid although every call agrees on it,
and by never having been tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import Argument, OpFacts, ValueRef
from frx_graph.facts.layout import dimension_order, is_expanded
from frx_graph.facts.operator_overload import find_overload
from frx_graph.rules.dimension_map import (
    Order,
    Shape,
    canonical,
    dimension_sources,
    mapped_order,
    plain_order,
    stored_orders,
    strides_in_order,
)
from frx_graph.rules.layout_operator import DimensionMap, Keeps, LayoutOperator, LayoutRole
from frx_graph.rules.operator_samples import OperatorSample
from frx_graph.rules.operator_table import layout_results

_RANK_5 = (
    (0, 1, 2, 3, 4),
    (0, 2, 3, 4, 1),
    (1, 0, 2, 3, 4),
    (0, 2, 1, 3, 4),
    (0, 1, 2, 4, 3),
    (2, 3, 4, 0, 1),
    (4, 3, 2, 1, 0),
)
"""Plain, channels-last, and others; all 120 would take long and tell no more."""


@dataclass(frozen=True, slots=True)
class SeenResult:
    """One result that carries the layout. `order` is None for an expanded one; `values` says whether its values are
    those from plain operands, None where they cannot be compared; `view` whether it shares memory with an operand."""

    shape: Shape
    order: Order | None
    values: bool | None
    view: bool


@dataclass(frozen=True, slots=True)
class Observation:
    """One call with all its layout operands in `order`; `shape` is that of the first. `results` are by the row with
    which it was observed, `refused` where the operator would not run. `arithmetic` is true if torch counts its flops.
    """

    op: OpFacts
    shape: Shape
    order: Order
    results: tuple[SeenResult, ...]
    refused: bool
    arithmetic: bool


def orders_to_try(rank: int) -> tuple[Order, ...]:
    """Every order for ranks up to 4, some for rank 5."""
    return _RANK_5 if rank == 5 else tuple(itertools.permutations(range(rank)))


def observe(row: LayoutOperator, samples: Iterable[OperatorSample]) -> tuple[Observation, ...]:
    """Run every sample in every order, on the device of its tensors. Raises what the operator raises on plain operands;
    a refusal of other orders is what an observation tells."""
    found: list[Observation] = []
    for sample in samples:
        operands = list(_tensors(sample.args if row.operands is None else _at(sample.args, row.operands)))
        if not operands:
            continue
        shape = tuple(operands[0].shape)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            expected = sample.run(_copied(sample.args))
        arithmetic = counter.get_total_flops() > 0
        op, outputs = _facts(sample, expected)
        plain = _carrying(row, op, outputs, expected)
        for order in dict.fromkeys(canonical(shape, order) for order in orders_to_try(len(shape))):
            args = _relaid(sample.args, row.operands, order)
            try:
                with torch.no_grad():
                    results = _carrying(row, op, outputs, sample.run(args))
            except RuntimeError:
                found.append(Observation(op, shape, order, (), True, arithmetic))
                continue
            memory = {tensor.untyped_storage().data_ptr() for tensor in _tensors(args)}
            seen = tuple(
                _seen(result, None if sample.only_strides else reference, memory)
                for result, reference in zip(results, plain, strict=True)
            )
            found.append(Observation(op, shape, order, seen, False, arithmetic))
    return tuple(found)


def contradictions(row: LayoutOperator, observations: Sequence[Observation], *, device: str = "cpu") -> tuple[str, ...]:
    """What the row says and torch does not do, each as one line; empty where all agree."""
    found = [
        *_role_contradictions(row, observations),
        *_dimension_contradictions(row, observations),
        *_order_contradictions(row, observations, device),
        *_unsaid(row, observations, device),
    ]
    return tuple(dict.fromkeys(found))


def _role_contradictions(row: LayoutOperator, observations: Sequence[Observation]) -> Iterator[str]:
    """An anchor is an operator whose flops torch counts, or a pooling; the other roles follow from the dimensions."""
    anchor = any(seen.arithmetic for seen in observations) or "_pool" in row.operator
    if anchor != (row.role is LayoutRole.ANCHOR):
        yield f"{row.role}, but torch {'counts' if anchor else 'does not count'} its flops"
    if (row.role is LayoutRole.REDUCTION) != (row.dimensions is DimensionMap.REDUCE):
        yield f"{row.role} with the dimensions `{row.dimensions}`"
    if not anchor and (row.role is LayoutRole.BARRIER) != (row.dimensions is DimensionMap.NONE):
        yield f"{row.role} with the dimensions `{row.dimensions}`"


def _dimension_contradictions(row: LayoutOperator, observations: Sequence[Observation]) -> Iterator[str]:
    """Sizes: each dimension of a result has that of the operand's dimension that it is. Where an operator may change
    sizes, some call leaves each of them as it is."""
    if row.dimensions in (DimensionMap.NONE, DimensionMap.REGROUP):
        return
    unchanged: dict[int, set[int]] = {}
    for seen in observations:
        if not seen.results:
            continue
        rank = len(seen.shape)
        for result in seen.results:
            sources = dimension_sources(row.dimensions, seen.op, seen.shape, len(result.shape))
            if sources is None or len(sources) != len(result.shape):
                yield f"`{row.dimensions}` does not turn {seen.shape} into {result.shape}"
                return
            for dim, source in enumerate(sources):
                before = 1 if source is None else seen.shape[source]
                if before == result.shape[dim] and (source is None or seen.shape.count(before) == 1):
                    unchanged.setdefault(rank, set()).add(dim)
                elif before != result.shape[dim] and not _may_resize(row.dimensions, source, seen, dim):
                    yield f"`{row.dimensions}` does not turn {seen.shape} into {result.shape}"
                    return
    if row.dimensions is DimensionMap.SAME:
        for rank, dims in unchanged.items():
            if len(dims) < rank:
                yield f"no call of rank {rank} leaves dimensions {sorted(set(range(rank)) - dims)} their sizes"


def _may_resize(kind: DimensionMap, source: int | None, seen: Observation, dim: int) -> bool:
    if kind is DimensionMap.REDUCE:
        return source is not None and any(result.shape[dim] == 1 for result in seen.results)
    return kind in (DimensionMap.SAME, DimensionMap.EXPAND) or (kind is DimensionMap.STACK and source is None)


def _order_contradictions(row: LayoutOperator, observations: Sequence[Observation], device: str) -> Iterator[str]:
    tried = False
    for seen in observations:
        call = f"{seen.op.target}, {seen.shape} in order {seen.order}"
        # What a view refuses is seen by the sizes of the same call on another order.
        shapes = _result_shapes(seen, observations)
        said = stored_orders(row, seen.op, seen.shape, seen.order, shapes, device=device)
        if seen.refused:
            if any(order is not None for order in said):
                yield f"{call}: {said} is said, and it does not run"
            continue
        if len(said) != len(seen.results):
            yield f"{call}: has {len(seen.results)} results"
        for order, result in zip(said, seen.results, strict=False):
            if result.values is False and not (row.last_innermost and _last_is_not_innermost(seen)):
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
    if row.dimensions is DimensionMap.NONE:
        return
    wider = row.model_copy(update={"keeps": Keeps.ANY, "makes": None})
    for keeps in (Keeps.CHANNELS_LAST, Keeps.ANY):
        if _narrower(row.keeps, keeps) and _all_kept(wider, keeps, observations, device):
            yield f"`{row.keeps}` is said, `{keeps}` seen"
    if row.last_innermost and not any(
        result.values is False for seen in observations if _last_is_not_innermost(seen) for result in seen.results
    ):
        yield "the last dimension need not be innermost"
    if row.keeps is Keeps.CHANNELS_LAST and not any(_is_channels_last(seen) for seen in observations):
        yield "channels-last was never tried"
    if row.keeps is Keeps.ANY and row.dimensions is DimensionMap.REGROUP:
        for seen in observations:
            shapes = _result_shapes(seen, observations)
            said = stored_orders(row, seen.op, seen.shape, seen.order, shapes, device=device)
            if any(order is None and result.view for order, result in zip(said, seen.results, strict=False)):
                yield f"{seen.op.target}, {seen.shape} in order {seen.order}: is a view"


def _last_is_not_innermost(seen: Observation) -> bool:
    return seen.order[-1] != len(seen.shape) - 1


def _narrower(said: Keeps, seen: Keeps) -> bool:
    if said is Keeps.NONE:
        return True
    return said is Keeps.CHANNELS_LAST and seen is Keeps.ANY


def _all_kept(
    row: LayoutOperator, keeps: Keeps, observations: Sequence[Observation], device: str
) -> bool:
    """True if every result of another than the plain order lies in the mapped one; for channels-last, of that order."""
    told = 0
    for seen in observations:
        if seen.order == plain_order(seen.shape) or (keeps is Keeps.CHANNELS_LAST and not _is_channels_last(seen)):
            continue
        for result in seen.results:
            mapped = mapped_order(row.dimensions, seen.op, seen.shape, seen.order, result.shape)
            if mapped is None or mapped == plain_order(result.shape):
                continue
            if mapped != result.order:
                return False
            told += 1
    return told > 0


def _is_channels_last(seen: Observation) -> bool:
    order = seen.order
    return len(order) > 3 and order == canonical(seen.shape, (0, *range(2, len(order)), 1)) != plain_order(seen.shape)


def _result_shapes(seen: Observation, observations: Sequence[Observation]) -> tuple[Shape, ...]:
    if not seen.refused:
        return tuple(result.shape for result in seen.results)
    for other in observations:
        if other.op is seen.op and not other.refused:
            return tuple(result.shape for result in other.results)
    return ()


def _seen(result: Tensor, reference: Tensor | None, memory: Set[int]) -> SeenResult:
    shape, strides = tuple(result.shape), tuple(result.stride())
    order = None if is_expanded(shape, strides) else dimension_order(shape, strides)
    values = None if reference is None else _equal(result, reference)
    return SeenResult(shape, order, values, result.untyped_storage().data_ptr() in memory)


def _equal(result: Tensor, reference: Tensor) -> bool:
    try:
        torch.testing.assert_close(result, reference)
    except AssertionError:
        return False
    return True


def _carrying(row: LayoutOperator, op: OpFacts, outputs: Sequence[int], results: tuple[Any, ...]) -> list[Tensor]:
    tensors = {name: results[position] for name, position in zip(op.outputs, outputs, strict=True)}
    return [tensors[name] for name in layout_results(op, row)]


def _facts(sample: OperatorSample, results: tuple[Any, ...]) -> tuple[OpFacts, tuple[int, ...]]:
    """The call as a graph would hold it, and which of the operator's `results` its outputs are."""
    overload = find_overload(sample.target)
    if overload is None:
        raise LookupError(f"this torch has no {sample.target}")
    names = {id(tensor): f"operand_{number}" for number, tensor in enumerate(_tensors(sample.args))}
    outputs = tuple(position for position, result in enumerate(results) if isinstance(result, Tensor))
    writes = [
        names[id(argument)]
        for argument, schema in zip(sample.args, overload._schema.arguments, strict=False)
        if schema.alias_info is not None and schema.alias_info.is_write and isinstance(argument, Tensor)
    ]
    return OpFacts(
        node=sample.operator,
        target=sample.target,
        operator=sample.operator,
        args=tuple(_argument(argument, names) for argument in sample.args),
        kwargs=dict(sample.kwargs),
        inputs=tuple(names[id(tensor)] for tensor in _tensors(sample.args)),
        outputs=tuple(f"result_{position}" for position in outputs),
        mutates=tuple(writes),
        phase=Phase.FORWARD,
        site=UNKNOWN_SITE,
        view=any(r.alias_info is not None and not r.alias_info.is_write for r in overload._schema.returns),
        pointwise=torch.Tag.pointwise in overload.tags,
    ), outputs


def _argument(value: Any, names: dict[int, str]) -> Argument:
    if isinstance(value, Tensor):
        return ValueRef(names[id(value)])
    if isinstance(value, (list, tuple)):
        return tuple(_argument(item, names) for item in value)
    argument: Argument = value
    return argument


def _relaid(args: tuple[Any, ...], positions: tuple[int, ...] | None, order: Order) -> tuple[Any, ...]:
    """Copies of the arguments, those at `positions` that have as many dimensions as `order` in that order."""
    return tuple(
        _laid_out(argument, order) if positions is None or position in positions else _copied(argument)
        for position, argument in enumerate(args)
    )


def _laid_out(value: Any, order: Order) -> Any:
    if isinstance(value, Tensor) and value.dim() == len(order):
        shape = tuple(value.shape)
        strides = strides_in_order(shape, order)
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device).copy_(value)
    if isinstance(value, (list, tuple)):
        return tuple(_laid_out(item, order) for item in value)
    return _copied(value)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    return tuple(_copied(item) for item in value) if isinstance(value, (list, tuple)) else value


def _at(args: tuple[Any, ...], positions: Iterable[int]) -> tuple[Any, ...]:
    return tuple(args[position] for position in positions if position < len(args))


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _tensors(argument)
