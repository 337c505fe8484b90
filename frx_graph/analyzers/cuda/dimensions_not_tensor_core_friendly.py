"""Detect a tile for the tensor cores whose rows are not a multiple of 16 bytes apart.

`wmma::load_matrix_sync` requires that for the leading dimension (8 elements of half precision, 4 of single):
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#warp-matrix-functions. Certain if the leading dimension is a
number, and the type of the element is known.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.evidence.cuda.constants import TYPE_BYTES
from frx_graph.evidence.cuda.source import CudaSource

ALIGNMENT = 16
"""Bytes."""


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per load or store of a fragment."""
    for kernel in source.kernels:
        for call in kernel.calls:
            short = call.name.rsplit("::", 1)[-1]
            if short not in ("load_matrix_sync", "store_matrix_sync") or len(call.values) < 3:
                continue
            element = call.elements[1] if short.startswith("load") else call.elements[0]
            size, leading = TYPE_BYTES.get(element or ""), call.values[2]
            if size is not None and leading is not None and leading * size % ALIGNMENT:
                rows = f"rows {leading} elements of {size} bytes apart"
                said = f"`{call.name}` with {rows}, no multiple of {ALIGNMENT} bytes"
                yield Occurrence(kernel.name, call.step.line, said)
