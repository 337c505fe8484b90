"""Define the calls over which a layout contract is measured, and strides that represent each class.

A case is one ordinary use of one overload. Its tensors are contiguous, except the varied one. A class has several
strides if an operator could distinguish them; if it does, the class is unknown for that operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from frx_graph.facts.layout import (
    CHANNELS_LAST_ORDER,
    StridePattern,
    classify_strides,
    make_contiguous_strides,
    make_ordered_strides,
)
from frx_graph.facts.operator_signature import OperatorSignature, SpecArgument, TensorSpec

MEASURED_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument of a case. `dtype` None is the dtype under measurement. Operands that are not `varied` (small
    vectors, indices) are always contiguous."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    varied: bool = True


CaseArgument: TypeAlias = "Operand | int | float | bool | torch.dtype | tuple[CaseArgument, ...] | None"


@dataclass(frozen=True, slots=True)
class Case:
    """One call: overload, a name that tells its uses apart, positional arguments."""

    target: str
    name: str
    args: tuple[CaseArgument, ...]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The tensor arguments in order."""
        return tuple(_collect_operands(self.args))

    def make_signature(
        self, dtype: torch.dtype, device: str, varied: int | None = None, strides: Sequence[int] = ()
    ) -> OperatorSignature:
        """The call with tensor argument number `varied` in these strides and all others contiguous."""
        position = -1

        def make_argument(argument: CaseArgument) -> SpecArgument:
            nonlocal position
            if isinstance(argument, Operand):
                position += 1
                own = tuple(strides) if position == varied else make_contiguous_strides(argument.shape)
                return TensorSpec(argument.shape, own, argument.dtype or dtype, device)
            if isinstance(argument, tuple):
                return tuple(make_argument(item) for item in argument)
            return argument

        return OperatorSignature(self.target, tuple(make_argument(argument) for argument in self.args))


def make_representatives(shape: Sequence[int]) -> Iterator[tuple[StridePattern, tuple[int, ...]]]:
    """Strides for every class that a tensor of this shape can be in, one or more a class."""
    rank = len(shape)
    orders: list[tuple[int, ...]] = [order for order in _ORDERS if len(order) == rank]
    if rank in CHANNELS_LAST_ORDER:
        orders.append(CHANNELS_LAST_ORDER[rank])
    found = [
        make_contiguous_strides(shape),
        *(make_ordered_strides(shape, order) for order in orders),
        *_make_sparse_strides(shape),
    ]
    for strides in dict.fromkeys(found):
        yield classify_strides(shape, strides), strides


_ORDERS = (
    (1, 0),
    (0, 2, 1),
    (1, 0, 2),
    (1, 2, 0),
    (0, 1, 3, 2),
    (0, 2, 1, 3),
    (0, 3, 1, 2),
    (1, 0, 2, 3),
    (2, 3, 0, 1),
    (0, 1, 2, 4, 3),
    (0, 2, 1, 3, 4),
    (0, 4, 1, 2, 3),
)
"""Dimensions from outermost to innermost in memory: transposed matrices, attention heads, sequence-first, and orders
with another innermost dimension."""


def _make_sparse_strides(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield a slice of the last dimension, a transposed one, a slice of the dimension before it, a step of 2, and
    broadcasts along the first and the last dimension."""
    rank = len(shape)
    if rank >= 2:
        yield make_contiguous_strides((*shape[:-1], 2 * shape[-1]))
        yield make_ordered_strides((*shape[:-2], 2 * shape[-2], shape[-1]), (*range(rank - 2), rank - 1, rank - 2))
    if rank >= 3:
        yield make_contiguous_strides((*shape[:-2], 2 * shape[-2], shape[-1]))
    if rank >= 1:
        yield tuple(2 * stride for stride in make_contiguous_strides(shape))
        yield (0, *make_contiguous_strides(shape[1:]))
        yield (*make_contiguous_strides(shape[:-1]), 0)


def _collect_operands(arguments: Sequence[CaseArgument]) -> Iterator[Operand]:
    for argument in arguments:
        if isinstance(argument, Operand):
            yield argument
        elif isinstance(argument, tuple):
            yield from _collect_operands(argument)
