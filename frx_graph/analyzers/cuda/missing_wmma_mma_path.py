"""Detect a half-precision product of matrices that is computed term by term, although tensor cores support it.

Certain as in `fp32_only_matmul`, for operands of `half` or `bfloat16`.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence, find_matrix_products
from frx_graph.evidence.cuda.source import CudaSource

_HALVES = frozenset(["half", "__half", "nv_bfloat16", "__nv_bfloat16", "half2", "__half2", "__nv_bfloat162"])


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per kernel."""
    for kernel in source.kernels:
        for product in find_matrix_products(kernel):
            if product.left.element in _HALVES and product.right.element in _HALVES:
                factors = f"`{product.left.text}` times `{product.right.text}`, both {product.left.element}"
                said = f"{factors}, is added up a multiplication at a time"
                yield Occurrence(kernel.name, product.step.line, said, product.left)
                break
