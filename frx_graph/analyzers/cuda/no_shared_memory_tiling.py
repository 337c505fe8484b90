"""Detect a product of matrices that reads both operands from global memory for every element of the result.

All threads of a row read that row again, and all threads of a column that column, though a tile of both fits into
shared memory. Certain if one factor is the same for all threads along x, the other along y, and the kernel has no
shared memory at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence, find_matrix_products
from frx_graph.evidence.cuda.source import CudaSource, Space


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per kernel."""
    for kernel in source.kernels:
        if Space.SHARED in {one.space for one in kernel.arrays} | {one.space for one in kernel.accesses}:
            continue
        for product in find_matrix_products(kernel):
            said = (
                f"`{product.left.text}` and `{product.right.text}` are read from global memory for every element of "
                "the result, by a whole row and a whole column of threads"
            )
            yield Occurrence(kernel.name, product.step.line, said, product.left)
            break
