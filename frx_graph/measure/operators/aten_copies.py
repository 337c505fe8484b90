"""Find the layout copies among the `aten::copy_` calls below an operator.

A layout copy moves every element of a tensor into a new block of memory, in another order or out of a view, and changes
nothing else:

- Source and target have the same dtype, device and sizes. A change of dtype is a conversion, and a copy between sizes
  that broadcast fills the target (the bias that `addmm` starts from).
- The target is dense. Writing into a slice (`slice_backward`, `constant_pad_nd`, `cat`, a key-value cache) produces the
  operator's result.
- The memory order differs. An operator that clones a tensor in the same order, to write into the clone (`masked_fill`,
  `index_put`), produces its result, and so does one that writes into a clone in any order. If the program itself calls
  `clone`, `contiguous`, `reshape` or `to`, the copy counts even in the same order.
- The program called the copy, `clone` or `_to_copy` made it (which `contiguous` and `reshape` call), or it brings a
  gradient into its parameter's strides. A direct `copy_` of any other operator fills a result or a buffer.

Materialising an expanded tensor is a layout copy, since its strides cause the memory traffic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from frx_graph.facts.layout import is_dense, is_reordering_copy
from frx_graph.facts.operator_families import EXPLICIT_COPIES, LAYOUT_COPIES, get_profiler_names
from frx_graph.measure.operators.operator_events import OperatorEvent, TensorUse
from frx_graph.measure.operators.operator_measurement import Mechanism, ObservedRole, SeenCopy

WEIGHT_OPERAND: Mapping[str, int] = MappingProxyType(
    {
        "aten::convolution": 1,
        "aten::convolution_overrideable": 1,
        "aten::convolution_backward": 2,
        "aten::conv1d": 1,
        "aten::conv2d": 1,
        "aten::conv3d": 1,
        "aten::linear": 1,
        "aten::mm": 1,
        "aten::addmm": 2,
        "aten::embedding": 0,
    }
)
"""Operator → position of the operand that holds the layer's weight in ordinary use."""

_CALLED_FOR_THE_COPY = get_profiler_names(EXPLICIT_COPIES) | {"aten::to", "aten::reshape"}
_ACCUMULATION = "torch::autograd::AccumulateGrad"
_COPYING = get_profiler_names(LAYOUT_COPIES)
_CHANGES_ONLY_THE_VIEW = re.compile(
    r"aten::(as_strided|detach|resize|set|squeeze|swapaxes|swapdims|t|transpose|unsqueeze)_"
)
_Caller: TypeAlias = tuple[OperatorEvent, OperatorEvent | None] | None
"""The caller of a `copy_`, and that one's caller."""


def find_layout_copies(calls: Sequence[OperatorEvent]) -> tuple[SeenCopy, ...]:
    """Return the layout copies made by these calls and below them, in order."""
    return tuple(copy for call in calls for copy in _find_copies_below(call))


def get_operand_role(operator: str, operand: int | None) -> ObservedRole:
    """Return `weight`, `input`, or `output` for a tensor that is none of the operands."""
    if operand is None:
        return "output"
    return "weight" if WEIGHT_OPERAND.get(operator) == operand else "input"


def _find_copies_below(call: OperatorEvent) -> Iterator[SeenCopy]:
    numbered = list(enumerate(call.tensors))[::-1]
    operands = {tensor.storage: position for position, tensor in numbered}
    exact = {(tensor.storage, tensor.sizes, tensor.strides): position for position, tensor in numbered}
    for copy, caller in _walk_copy_calls(call, None):
        if not _is_layout_copy(copy, caller, call):
            continue
        target, source = copy.tensors[0], copy.tensors[1]
        operand = exact.get((source.storage, source.sizes, source.strides), operands.get(source.storage))
        if operand is not None:
            # What is made from the copy (a copy of a copy) is still that operand.
            operands[target.storage] = operand
        yield SeenCopy(
            mechanism=Mechanism.ATEN,
            shape=target.sizes,
            itemsize=target.dtype.itemsize,
            source=str(list(source.strides)),
            target=str(list(target.strides)),
            role=get_operand_role(call.name, operand),
            operand=operand,
        )


def _walk_copy_calls(event: OperatorEvent, caller: _Caller) -> Iterator[tuple[OperatorEvent, _Caller]]:
    if event.name == "aten::copy_":
        yield event, caller
        return
    for child in event.children:
        yield from _walk_copy_calls(child, (event, caller[0] if caller is not None else None))


def _is_layout_copy(copy: OperatorEvent, caller: _Caller, call: OperatorEvent) -> bool:
    if len(copy.tensors) < 2:
        return False
    target, source = copy.tensors[0], copy.tensors[1]
    if (source.dtype, source.device, source.sizes) != (target.dtype, target.device, target.sizes):
        return False
    if call.name in _CALLED_FOR_THE_COPY:
        return target.numel > 0 and is_dense(target.sizes, target.strides)
    if not is_reordering_copy(target.sizes, source.strides, target.strides):
        return False
    if caller is None or caller[0].name == _ACCUMULATION:
        return True
    made_by, made_for = caller
    return made_by.name in _COPYING and not _is_written_later(target, made_by, made_for)


def _is_written_later(result: TensorUse, clone: OperatorEvent, parent: OperatorEvent | None) -> bool:
    """Return True if `parent` called `clone` itself and then an in-place operator on the result."""
    return any(
        sibling.start_ns > clone.start_ns
        and sibling.name.endswith("_")
        and not _CHANGES_ONLY_THE_VIEW.fullmatch(sibling.name)
        and [(t.tensor, t.storage) for t in sibling.tensors[:1]] == [(result.tensor, result.storage)]
        for sibling in (() if parent is None else parent.children)
    )
