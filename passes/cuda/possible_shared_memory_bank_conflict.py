"""Threads of a warp want different words of the same bank of shared memory, which serves one at a time.

Certain where the stride between neighbouring threads is a number (32 for a column of `tile[32][32]`), or a multiple of
an even one. Silent where one thread of a warp is at work, and where the stride cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.evidence.cuda.source import CudaSource, Space, StrideKind
from frx_graph.passes.cuda.finding import CudaDetector, Sight


def detect(source: CudaSource) -> Iterator[Sight]:
    """One sight for an array and stride in a kernel."""
    for kernel in source.kernels:
        seen: set[tuple[str, str | None]] = set()
        for access in kernel.accesses:
            key = (access.base, access.stride.text)
            if access.space is not Space.SHARED or access.conflict is None or access.conflict < 2:
                continue
            if key in seen or access.step.single:
                continue
            seen.add(key)
            least = "at least " if access.stride.kind is StrideKind.SYMBOLIC else ""
            said = (
                f"`{access.text}`: neighbouring threads are {access.stride.text} elements of {access.element_bytes} "
                f"bytes apart, {least}{access.conflict} of a warp in the same bank"
            )
            yield Sight(kernel.name, access.step.line, said, access)


DETECTOR = CudaDetector("possible_shared_memory_bank_conflict", detect)
