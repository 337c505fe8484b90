"""Detect a single-precision product of matrices that is computed term by term instead of by tensor cores.

Certain if a sum over products has one factor that is constant along x and one that is constant along y, both `float`,
and the kernel uses neither `wmma` nor inline assembly.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence, find_matrix_products
from frx_graph.evidence.cuda.source import CudaSource


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per kernel."""
    for kernel in source.kernels:
        for product in find_matrix_products(kernel):
            if product.left.element == product.right.element == "float":
                factors = f"`{product.left.text}` times `{product.right.text}`"
                said = f"{factors} is added up in FP32, a multiplication at a time"
                yield Occurrence(kernel.name, product.step.line, said, product.left)
                break
