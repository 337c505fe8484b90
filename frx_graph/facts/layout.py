"""Compute memory layout from shapes and strides; pure functions, without tensors.

Follows torch's own rules (`c10/core/MemoryFormat.h`, `TensorImpl::compute_non_overlapping_and_dense`): dimensions of
size 1 put no constraint on their stride, and a tensor without elements is contiguous in every format.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

CHANNELS_LAST_ORDER = {3: (0, 2, 1), 4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
"""Rank → dimensions from outermost to innermost in channels-last. Rank 3 is torch's unofficial NLC order."""


class Layout(enum.StrEnum):
    """The name of a dense tensor's dimension order, or why it has none."""

    PLAIN = "plain"
    CHANNELS_LAST = "channels_last"
    PERMUTED = "permuted"
    STRIDED = "strided"
    """Not dense: gaps between elements (a slice), or not all of the storage."""
    EXPANDED = "expanded"
    """Overlapping: a stride of 0 over a dimension larger than 1."""


class StridePattern(enum.StrEnum):
    """The classes over which the operator layout contracts are measured."""

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"
    TRANSPOSED = "transposed"
    """Contiguous but for the last two dimensions, which are swapped."""
    HEADS = "heads"
    """Rank 4, `(b, s, h, d)` stored and viewed as `(b, h, s, d)`: what attention heads look like."""
    PERMUTED = "permuted"
    """Dense in any other order."""
    ROW_SLICED = "row_sliced"
    """Not dense, but the last dimension has stride 1: a slice of a contiguous tensor."""
    INNER_STRIDED = "inner_strided"
    """Not dense and no unit stride in the last dimension."""
    EXPANDED = "expanded"


def name_channels_last(rank: int) -> str:
    """Return the name of the channels-last memory format for images of this rank, 4 or 5."""
    return "torch.channels_last_3d" if rank == 5 else "torch.channels_last"


def make_contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return row-major strides, in elements, with torch's convention for size-0 dimensions (counted as 1)."""
    return make_ordered_strides(shape, range(len(shape)))


def make_ordered_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return dense strides, in elements, for `shape` stored in `order`, from the outermost dimension inwards."""
    strides = [0] * len(shape)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def invert_order(order: Sequence[int]) -> list[int]:
    """Return the permutation that undoes the permutation `order`."""
    return sorted(range(len(order)), key=order.__getitem__)


def follows_order(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """Return True if the strides are dense in `order`, ignoring dimensions of size 1."""
    if 0 in shape:
        return True
    expected = make_ordered_strides(shape, order)
    return all(n == 1 or s == e for n, s, e in zip(shape, strides, expected, strict=True))


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True as torch's `is_contiguous()` does."""
    return follows_order(shape, strides, range(len(shape)))


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True as torch's `is_contiguous(memory_format=channels_last[_3d])` does, for ranks 4 and 5 only."""
    return len(shape) in (4, 5) and follows_order(shape, strides, CHANNELS_LAST_ORDER[len(shape)])


def is_reordering_copy(shape: Sequence[int], source: Sequence[int], target: Sequence[int]) -> bool:
    """Return True if a copy between these strides fills a dense target and changes the memory order. Writing into a
    target with gaps (a slice of columns, a key-value cache) does not count."""
    if 0 in shape or not is_dense(shape, target):
        return False
    return any(size != 1 and ours != theirs for size, ours, theirs in zip(shape, source, target, strict=True))


def get_dimension_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions from outermost to innermost in memory. Dimensions of size 1 stay behind their left
    neighbour, so that `(n, 1, h, w)` is plain."""
    movable = sorted(
        (dim for dim in range(len(shape)) if shape[dim] != 1),
        key=lambda dim: (-strides[dim], dim),
    )
    order = list(movable)
    for dim in range(len(shape)):
        if shape[dim] == 1:
            order.insert(order.index(dim - 1) + 1 if dim else 0, dim)
    return tuple(order)


def is_expanded(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if an element is visible at several indices through a stride of 0."""
    return any(n > 1 and s == 0 for n, s in zip(shape, strides, strict=True))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if the elements fill one block of memory, each once."""
    return not is_expanded(shape, strides) and follows_order(shape, strides, get_dimension_order(shape, strides))


def classify_layout(shape: Sequence[int], strides: Sequence[int]) -> Layout:
    """Return the layout's name. A tensor both plain and channels-last (one channel, 1x1 image) is PLAIN."""
    if is_contiguous(shape, strides):
        return Layout.PLAIN
    if is_channels_last(shape, strides):
        return Layout.CHANNELS_LAST
    if is_expanded(shape, strides):
        return Layout.EXPANDED
    return Layout.PERMUTED if is_dense(shape, strides) else Layout.STRIDED


def classify_strides(shape: Sequence[int], strides: Sequence[int]) -> StridePattern:
    """Return the stride class that the operator layout contract uses."""
    layout = classify_layout(shape, strides)
    if layout is Layout.PLAIN:
        return StridePattern.CONTIGUOUS
    if layout is Layout.EXPANDED:
        return StridePattern.EXPANDED
    rank = len(shape)
    if layout is Layout.STRIDED:
        return StridePattern.ROW_SLICED if strides[-1] == 1 or shape[-1] == 1 else StridePattern.INNER_STRIDED
    if rank >= 2 and follows_order(shape, strides, (*range(rank - 2), rank - 1, rank - 2)):
        return StridePattern.TRANSPOSED
    if layout is Layout.CHANNELS_LAST:
        return StridePattern.CHANNELS_LAST
    if rank == 4 and follows_order(shape, strides, (0, 2, 1, 3)):
        return StridePattern.HEADS
    return StridePattern.PERMUTED


def compute_storage_extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the elements of storage from the first to the last that the tensor can reach, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True))


def count_distinct_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of distinct elements: the product of the sizes of dimensions that are not expanded."""
    return math.prod(n for n, s in zip(shape, strides, strict=True) if s != 0 or n == 1)
