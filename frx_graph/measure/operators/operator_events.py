"""Read the profiler's record of operator calls as a tree, with the tensors of each call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from frx_graph.support.torch_internals import EventType, TensorMetadata


@dataclass(frozen=True, slots=True)
class TensorUse:
    """A tensor as an operator saw it. `storage` and `tensor` are addresses: they tell two tensors of one moment apart,
    and may be reused once a tensor is gone."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: str
    storage: int
    tensor: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.sizes:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class OperatorEvent:
    """One operator call. `tensors` are its tensor arguments in order, lists flattened; times are nanoseconds."""

    name: str
    tensors: tuple[TensorUse, ...]
    children: tuple[OperatorEvent, ...]
    start_ns: int
    duration_ns: int
    correlation: int

    def walk_subtree(self) -> Iterator[OperatorEvent]:
        """The call itself and all that it made, in order."""
        yield self
        for child in self.children:
            yield from child.walk_subtree()


def convert_events(roots: Sequence[Any]) -> tuple[OperatorEvent, ...]:
    """Convert the profiler's `experimental_event_tree()`; events other than operator calls are skipped, their children
    kept."""
    return tuple(event for root in roots for event in _convert(root))


def _convert(event: Any) -> Iterator[OperatorEvent]:
    children = tuple(converted for child in event.children for converted in _convert(child))
    if event.tag != EventType.TorchOp:
        yield from children
        return
    yield OperatorEvent(
        name=event.name,
        tensors=tuple(_collect_tensors(event.extra_fields.inputs)),
        children=children,
        start_ns=event.start_time_ns,
        duration_ns=event.duration_time_ns,
        correlation=event.correlation_id,
    )


def _collect_tensors(inputs: Sequence[Any]) -> Iterator[TensorUse]:
    for value in inputs:
        if isinstance(value, TensorMetadata):
            yield TensorUse(
                sizes=tuple(value.sizes),
                strides=tuple(value.strides),
                dtype=value.dtype,
                device=value.device.type,
                storage=value.storage_data_ptr or 0,
                tensor=value.impl_ptr or 0,
            )
        elif isinstance(value, list):
            yield from _collect_tensors(value)
