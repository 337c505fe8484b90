"""Compare the shapes and strides of batches and parameters from step to step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from frx_graph.analyzers.run.steps import RunStep
from frx_graph.analyzers.timeline.host_time import FEWEST_STEPS, ShapeChanges
from frx_graph.evidence.run.events import RecordedTensor, RunEvent, ShapeSnapshot, SnapshotOf
from frx_graph.records import Severity

RULE = "FRX006"
OFTEN = 0.30
"""Share of the steps, as for shapes: with so many changes, one compilation or tuning never lasts."""
STEPS_NAMED = 10


@dataclass(frozen=True, slots=True)
class StrideChange:
    """A tensor whose strides, in elements, changed while its shape did not. `steps` are the first `STEPS_NAMED` step
    numbers; `among` counts the steps that could have changed."""

    of: SnapshotOf
    tensor: str
    shape: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    count: int
    among: int
    steps: tuple[int, ...]

    @property
    def severity(self) -> Severity:
        """Return the severity by frequency."""
        if self.count < 2:
            return Severity.LOW
        return Severity.HIGH if self.count >= OFTEN * self.among else Severity.MEDIUM


@dataclass(frozen=True, slots=True)
class Layouts:
    """Snapshots of a run; batch layouts are numbered within their process."""

    numbered: dict[tuple[int | None, int], ShapeSnapshot]
    by_step: dict[tuple[int | None, int], ShapeSnapshot]
    parameters: tuple[ShapeSnapshot, ...]

    def find_batch(self, step: RunStep) -> ShapeSnapshot | None:
        """Return the batch of a step; None if not recorded."""
        if step.layout is not None:
            return self.numbered.get((step.process, step.layout))
        return None if step.number is None else self.by_step.get((step.process, step.number))


def collect_layouts(events: Sequence[RunEvent]) -> Layouts:
    """Collect all snapshots; a later one replaces an earlier one of the same number."""
    numbered, by_step, parameters = {}, {}, []
    for event in events:
        if not isinstance(event, ShapeSnapshot):
            continue
        if event.of is SnapshotOf.PARAMETERS:
            parameters.append(event)
        elif event.layout is not None:
            numbered[event.process, event.layout] = event
        elif event.step is not None:
            by_step[event.process, event.step] = event
    return Layouts(numbered, by_step, tuple(sorted(parameters, key=lambda event: event.at_ns)))


def count_shape_changes(known: Layouts, steps: Sequence[RunStep]) -> ShapeChanges | None:
    """Count steps whose batch shapes differ from the step before. None if fewer than `FEWEST_STEPS` are known."""
    changed = [_list_shapes(one) != _list_shapes(other) for one, other, _ in _pair_neighbours(known, steps)]
    return None if len(changed) + 1 < FEWEST_STEPS else ShapeChanges(len(changed) + 1, sum(changed))


def find_stride_changes(known: Layouts, steps: Sequence[RunStep]) -> tuple[StrideChange, ...]:
    """Return tensors whose strides changed, but not their shape, the most frequent first. Strides of size-1 dimensions
    do not count."""
    found: dict[tuple[SnapshotOf, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]], list[int | None]]
    found = defaultdict(list)
    pairs = list(_pair_neighbours(known, steps))
    for one, other, step in pairs:
        before = {tensor.name: tensor for tensor in one.tensors}
        for tensor in other.tensors:
            if (change := _compare_strides(before.get(tensor.name), tensor)) is not None:
                found[SnapshotOf.BATCH, tensor.name, tensor.shape, *change].append(step.number)
    held: dict[tuple[int | None, str], RecordedTensor] = {}
    for snapshot in known.parameters:
        for tensor in snapshot.tensors:
            if (change := _compare_strides(held.get((snapshot.process, tensor.name)), tensor)) is not None:
                found[SnapshotOf.PARAMETERS, tensor.name, tensor.shape, *change].append(snapshot.step)
            held[snapshot.process, tensor.name] = tensor
    among = {SnapshotOf.BATCH: len(pairs), SnapshotOf.PARAMETERS: max(1, len(steps) - 1)}
    changes = [
        StrideChange(
            of=of,
            tensor=name,
            shape=shape,
            before=before,
            after=after,
            count=len(numbers),
            among=max(len(numbers), among[of]),
            steps=tuple(number for number in numbers if number is not None)[:STEPS_NAMED],
        )
        for (of, name, shape, before, after), numbers in found.items()
    ]
    return tuple(sorted(changes, key=lambda change: (-change.count, change.of, change.tensor, change.before)))


def _pair_neighbours(
    known: Layouts, steps: Sequence[RunStep]
) -> Iterator[tuple[ShapeSnapshot, ShapeSnapshot, RunStep]]:
    """Yield batches of consecutive steps of one kind in a process, with the second step."""
    chains: dict[tuple[int | None, int, str | None], list[tuple[ShapeSnapshot, RunStep]]] = defaultdict(list)
    for step in steps:
        if (batch := known.find_batch(step)) is not None:
            chains[step.process, step.clock, step.kind].append((batch, step))
    for chain in chains.values():
        for (one, _), (other, step) in pairwise(chain):
            if step.whole:
                yield one, other, step


def _list_shapes(batch: ShapeSnapshot) -> tuple[object, ...]:
    return tuple(sorted((tensor.name, tensor.shape) for tensor in batch.tensors)) or (batch.batch_size,)


def _compare_strides(
    before: RecordedTensor | None, after: RecordedTensor
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if before is None or before.shape != after.shape or before.strides is None or after.strides is None:
        return None
    pairs = zip(after.shape, before.strides, after.strides, strict=True)
    changed = any(size > 1 and one != other for size, one, other in pairs)
    return (before.strides, after.strides) if changed else None
