"""Symbolic sizes and strides as the numbers that they had in the captured example."""

from __future__ import annotations

from torch import SymInt, Tensor


def size_hint(size: int | SymInt) -> int:
    """The size of the captured example; 1 for a data-dependent size, of which nothing is known."""
    node = getattr(size, "node", None)
    if node is None:
        return int(size)
    return int(node.hint) if node.hint is not None else 1


def is_known(size: int | SymInt) -> bool:
    """False for a data-dependent size: nothing is known of it before a program runs."""
    node = getattr(size, "node", None)
    return node is None or node.hint is not None


def shape_hint(value: Tensor) -> tuple[int, ...]:
    """The shape of the captured example."""
    return tuple(size_hint(n) for n in value.shape)


def stride_hint(value: Tensor) -> tuple[int, ...]:
    """The strides of the captured example, in elements."""
    return tuple(size_hint(s) for s in value.stride())
