"""Reduce an operator call to what decides its speed and its hidden copies: the key for measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from frx_graph.facts.graph_facts import Argument, GraphFacts, OpFacts, ValueFacts, ValueRef


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor argument without its values. `strides` are in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * self.dtype.itemsize


SpecArgument: TypeAlias = "TensorSpec | Argument | tuple[SpecArgument, ...]"


@dataclass(frozen=True)
class OperatorSignature:
    """One overload with its argument specs; hashable. `kwargs` are sorted by name."""

    target: str
    args: tuple[SpecArgument, ...]
    kwargs: tuple[tuple[str, SpecArgument], ...] = ()

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensor arguments in order."""
        return tuple(_list_tensors((self.args, tuple(value for _, value in self.kwargs))))

    def make_arguments(self, make: Callable[[TensorSpec], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments of a call, with what `make` returns for the tensors."""

        def convert(argument: SpecArgument) -> Any:
            if isinstance(argument, TensorSpec):
                return make(argument)
            return [convert(item) for item in argument] if isinstance(argument, tuple) else argument

        return [convert(argument) for argument in self.args], {name: convert(value) for name, value in self.kwargs}


def make_tensor_spec(value: ValueFacts) -> TensorSpec:
    """Return a value of a graph as a tensor argument."""
    return TensorSpec(value.shape, value.strides, value.dtype, value.device.type)


def transpose_spec(matrix: TensorSpec) -> TensorSpec:
    """Return the transposed view of a matrix."""
    return replace(matrix, shape=matrix.shape[::-1], strides=matrix.strides[::-1])


def build_signature(
    op: OpFacts, facts: GraphFacts, strides: Mapping[str, tuple[int, ...]] = MappingProxyType({})
) -> OperatorSignature:
    """Return the signature of one call in a graph; `strides` replaces those of the values that it names."""

    def convert_argument(argument: Argument) -> SpecArgument:
        if isinstance(argument, ValueRef):
            if (value := facts.values.get(argument.name)) is None:
                return None
            return replace(make_tensor_spec(value), strides=strides.get(argument.name, value.strides))
        return tuple(convert_argument(item) for item in argument) if isinstance(argument, tuple) else argument

    return OperatorSignature(
        target=op.target,
        args=tuple(convert_argument(argument) for argument in op.args),
        kwargs=tuple((name, convert_argument(op.kwargs[name])) for name in sorted(op.kwargs)),
    )


def replace_strides(
    signature: OperatorSignature, strides: Callable[[TensorSpec], tuple[int, ...]]
) -> OperatorSignature:
    """Return the same call on operands with other strides."""

    def replace_argument(argument: SpecArgument) -> SpecArgument:
        if isinstance(argument, TensorSpec):
            return replace(argument, strides=strides(argument))
        return tuple(replace_argument(item) for item in argument) if isinstance(argument, tuple) else argument

    return OperatorSignature(
        signature.target,
        tuple(replace_argument(argument) for argument in signature.args),
        tuple((name, replace_argument(argument)) for name, argument in signature.kwargs),
    )


def _list_tensors(argument: SpecArgument) -> list[TensorSpec]:
    if isinstance(argument, TensorSpec):
        return [argument]
    if isinstance(argument, tuple):
        return [tensor for item in argument for tensor in _list_tensors(item)]
    return []


@dataclass(frozen=True, slots=True)
class ReadResult:
    """A result that is read: its position among the operator's results, and its strides."""

    position: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class GeneratedCall:
    """One overload as a separate loop, instead of eager's kernel. `signature` gives the operands, `results` the written
    outputs.

    `times` are the calls that share the loop: upsampling gathers several neighbours of each place from one operand.
    """

    signature: OperatorSignature
    results: tuple[ReadResult, ...]
    times: int = 1
