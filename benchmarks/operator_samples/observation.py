"""Runs sample calls of operators on operands in every dimension order, and keeps what came out."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.flop_counter import FlopCounterMode

from frx_graph.capture.call_site import UNKNOWN_SITE
from frx_graph.capture.captured_graph import Phase
from frx_graph.facts.graph_facts import Argument, OpFacts, ValueRef
from frx_graph.facts.layout import get_dimension_order, is_expanded, make_ordered_strides
from frx_graph.facts.operator_overload import find_overload
from frx_graph.passes.layouts.dimension_map import Order, Shape, canonicalize_order, match_memory_format
from frx_graph.passes.layouts.operator_layout import list_layout_results
from frx_graph.rules.layout_operator import LayoutOperator
from operator_samples.contractions import CONTRACTION_SAMPLES
from operator_samples.images import IMAGE_SAMPLES
from operator_samples.sample import OperatorSample, SampleTensors
from operator_samples.shapes import SHAPE_SAMPLES

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


def sample_calls(device: str) -> Mapping[str, tuple[OperatorSample, ...]]:
    """The sample calls of every operator that has some, with tensors on `device`."""
    tensors = SampleTensors(device)
    found: dict[str, list[OperatorSample]] = defaultdict(list)
    for family in (*IMAGE_SAMPLES, *SHAPE_SAMPLES, *CONTRACTION_SAMPLES):
        for sample in family(tensors):
            found[sample.operator].append(sample)
    return {operator: tuple(samples) for operator, samples in found.items()}


def orders_to_try(rank: int) -> tuple[Order, ...]:
    """Every order for ranks up to 4, some for rank 5."""
    return _RANK_5 if rank == 5 else tuple(itertools.permutations(range(rank)))


def observe(row: LayoutOperator, samples: Iterable[OperatorSample]) -> tuple[Observation, ...]:
    """Run every sample whose overload this torch has, in every order, on the device of its tensors. Raises what the
    operator raises on plain operands; a refusal of other orders is what an observation tells."""
    found: list[Observation] = []
    for sample in samples:
        overload = find_overload(sample.target)
        operands = list(_tensors(sample.args if row.operands is None else _at(sample.args, row.operands)))
        if overload is None or not operands:
            continue
        shape = tuple(operands[0].shape)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            expected = sample.run(_copied(sample.args))
        arithmetic = counter.get_total_flops() > 0
        op, outputs = _facts(sample, overload, expected)
        plain = _carrying(row, op, outputs, expected)
        for order in dict.fromkeys(canonicalize_order(shape, order) for order in orders_to_try(len(shape))):
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


def _seen(result: Tensor, reference: Tensor | None, memory: Set[int]) -> SeenResult:
    shape, strides = tuple(result.shape), tuple(result.stride())
    order = None if is_expanded(shape, strides) else get_dimension_order(shape, strides)
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
    return [tensors[name] for name in list_layout_results(op, row)]


def _facts(sample: OperatorSample, overload: OpOverload, results: tuple[Any, ...]) -> tuple[OpFacts, tuple[int, ...]]:
    """The call as a graph would hold it, and which of the operator's `results` its outputs are."""
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
        strides = make_ordered_strides(shape, match_memory_format(shape, order))
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
