"""Convert symbolic sizes and strides to the numbers of the captured example."""

from __future__ import annotations

from torch import SymInt, Tensor


def get_size_hint(size: int | SymInt) -> int:
    """Return the size in the captured example; 1 for a data-dependent size."""
    node = getattr(size, "node", None)
    if node is None:
        return int(size)
    return int(node.hint) if node.hint is not None else 1


def is_known(size: object) -> bool:
    """Return False for a data-dependent number, which is unknown before the program runs."""
    node = getattr(size, "node", None)
    return node is None or node.hint is not None


def get_shape_hint(value: Tensor) -> tuple[int, ...]:
    """Return the shape in the captured example."""
    return tuple(get_size_hint(n) for n in value.shape)


def get_stride_hint(value: Tensor) -> tuple[int, ...]:
    """Return the strides in the captured example, in elements."""
    return tuple(get_size_hint(s) for s in value.stride())
