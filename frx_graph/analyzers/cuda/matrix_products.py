"""Kernels that multiply matrices: a sum over products, one factor the same along x, the other the same along y."""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.evidence.cuda.source import Access, Kernel, Product, Space

_TENSOR = ("wmma", "mma", "asm", "tcgen05", "cute::", "cutlass")


def matrix_products(kernel: Kernel) -> Iterator[Product]:
    """The sums of which each factor is used by a whole row or column of threads. Both factors must move on with the
    same loop, and lie in the same kind of memory."""
    for event in kernel.events:
        if not isinstance(event, Product) or event.left.space is not event.right.space:
            continue
        if event.left.space not in (Space.GLOBAL, Space.SHARED) or not _same_loop(event):
            continue
        for row, column in ((event.left, event.right), (event.right, event.left)):
            if _along(row, "y", "x") and _along(column, "x", "y"):
                yield event
                break


def uses_tensor_cores(kernel: Kernel) -> bool:
    """True as well of inline assembly, which may."""
    return any(word in call.name for call in kernel.calls for word in _TENSOR) or any(
        "mma" in name for name in kernel.read
    )


def _along(access: Access, moves: str, stays: str) -> bool:
    return moves in access.varies and stays not in access.varies and "data" not in access.varies


def _same_loop(product: Product) -> bool:
    loops = [
        {symbol for symbol in access.offset.symbols() if symbol.startswith("loop:")}
        for access in (product.left, product.right)
    ]
    return bool(loops[0] & loops[1])
