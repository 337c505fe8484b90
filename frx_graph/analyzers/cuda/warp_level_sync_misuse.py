"""Detect code that expects the threads of a warp to run in step, which they need not since compute capability 7.0.

Certain in three cases:

- Shuffles and votes without a mask (`__shfl_down`), which no longer exist there.
- Shuffles and votes with the mask of a whole warp below a condition that holds for a part of it, as `i < n` does for
  the last warp.
- Memory that is `volatile` so that a warp sees the writes of other threads in it, without `__syncwarp()` between the
  write and the read.

Silent after an early `return`, and on the arm of an `#if` whose other arm has a mask. HIP's shuffles have no mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.analyzers.cuda.shared_memory_without_barrier import find_races
from frx_graph.evidence.cuda.source import CudaSource, WarpOperation


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per kernel and kind."""
    for kernel in source.kernels:
        operations = [event for event in kernel.events if isinstance(event, WarpOperation)]
        for one in operations:
            if one.mask is None and not source.hip and not _has_masked_alternative(one, operations):
                said = f"`{one.name}` has no mask: CUDA 9 has replaced it by `{one.name}_sync`"
                yield Occurrence(kernel.name, one.step.line, said)
                break
        for one in operations:
            split = next((c for c in one.step.conditions if (c.lane or c.ragged) and not c.early and not c.data), None)
            if one.full and split is not None:
                said = f"`{one.name}` wants all lanes below `{split.text}`, which may hold for a part of a warp"
                yield Occurrence(kernel.name, one.step.line, said)
                break
        for race in find_races(source, kernel, volatile=True):
            write, read = race.write, race.read
            wrote = f"`{write.text}` ({source.describe_line(write.step.line)})"
            said = f"`{read.text}` is read after other lanes write {wrote} without `__syncwarp()`"
            yield Occurrence(kernel.name, read.step.line, said, read)
            break


def _has_masked_alternative(legacy: WarpOperation, operations: Sequence[WarpOperation]) -> bool:
    """Return True if the other arm of an `#if` or `if` has a call with a mask, for the devices that need it."""
    other = {(branch, 1 - arm) for branch, arm in legacy.step.arms}
    return any(one.mask is not None and other & set(one.step.arms) for one in operations)
