"""Detect a launch whose threads all do the same to the same element.

Certain for a kernel that uses neither `threadIdx` nor `blockIdx` nor a cooperative group, and calls nothing that could.
It must write to global memory, and the same file must launch it with more than one thread per block.
"""

from __future__ import annotations

from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence, find_launches
from frx_graph.evidence.cuda.source import CudaSource, Space, Use

_PLACES = frozenset(
    ["threadIdx", "blockIdx", "this_thread_block", "this_grid", "tiled_partition", "coalesced_threads", "this_cluster"]
)


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per kernel."""
    for kernel in source.kernels:
        # An unknown macro or function may ask for the thread's place.
        macros = any(word.isupper() and len(word) > 1 for word in kernel.read)
        hidden = macros or any(not call.pure for call in kernel.calls)
        if not kernel.complete or kernel.read & _PLACES or hidden:
            continue
        written = [one for one in kernel.accesses if one.space is Space.GLOBAL and one.use is Use.WRITE]
        if not written or any(one.varies for one in kernel.accesses):
            continue
        several = next((one for one in find_launches(source, kernel) if (one.block.count or 0) > 1), None)
        if several is not None:
            threads = f"{several.block.count} threads (launch in line {several.line})"
            said = f"`{written[0].text}` is written by each of {threads}"
            yield Occurrence(kernel.name, written[0].step.line, said, written[0])
