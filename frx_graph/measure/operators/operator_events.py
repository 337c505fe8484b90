"""Run torch's profiler, and read its record of operator calls as a tree, with the tensors of each call."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from frx_graph.errors import EvidenceError
from frx_graph.measure.console_capture import STDERR, capture_output, drop_kineto_chatter
from frx_graph.support.torch_internals import EventType, TensorMetadata, is_profiler_enabled


@contextlib.contextmanager
def run_profiler(
    stop_before: str, *, on_gpu: bool = False, record_shapes: bool = False, profile_memory: bool = False
) -> Iterator[profile]:
    """Run torch's profiler in the block, without its messages on standard error. Raises `EvidenceError` if one is
    running already, which is to be stopped before `stop_before`."""
    if is_profiler_enabled():
        raise EvidenceError("a torch profiler is already running", f"stop it before {stop_before}")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    # Without `acc_events` the profiler warns of discarded events.
    profiler = profile(
        activities=activities, record_shapes=record_shapes, profile_memory=profile_memory, acc_events=True
    )
    with capture_output(STDERR, drop_kineto_chatter):
        profiler.start()
    try:
        yield profiler
    finally:
        if is_profiler_enabled():
            with capture_output(STDERR, drop_kineto_chatter):
                profiler.stop()


def get_kineto_results(profiler: profile) -> Any:
    """Return what the profiler recorded; None if something else has stopped it."""
    return None if profiler.profiler is None else profiler.profiler.kineto_results


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
        return math.prod(self.sizes)


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
    """Convert the profiler's `experimental_event_tree()`; events other than operator calls leave their children."""
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
