"""Detect threads that write to an array by their place in the grid without a check against its end.

Certain for a write without a condition or loop on the thread or the block, in a kernel with a size parameter that it
never reads. The same file must not launch the kernel, or must round its grid up, so that the last block has threads
without work. If every launch fits, no guard is needed and the rule is silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from frx_graph.analyzers.cuda.finding import Occurrence, find_launches
from frx_graph.evidence.cuda.source import Access, CudaSource, Kernel, Space, Use

_SIZE = re.compile(r"(?:n|N|len|length|size|count|total|num\w*|n_\w+|numElements)$")
_INTEGERS = frozenset(
    ["int", "unsigned", "unsigned int", "uint", "size_t", "long", "long long", "int64_t", "uint32_t", "int32_t"]
)
_THREADS = frozenset(["x", "y", "z", "block", "data"])


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per kernel."""
    for kernel in source.kernels:
        if not kernel.complete or _has_guard(kernel):
            continue
        write = next((access for access in kernel.accesses if _is_by_place(access)), None)
        why = _explain_risk(source, kernel)
        if write is not None and why is not None:
            said = f"`{write.text}` is written whatever its index: {why}"
            yield Occurrence(kernel.name, write.step.line, said, write)


def _has_guard(kernel: Kernel) -> bool:
    """Return True if anything in the kernel depends, or may depend, on a comparison with a thread's place."""
    return any(condition.varies & _THREADS for event in kernel.events for condition in event.step.conditions) or any(
        event.name.startswith("assert") or not event.pure for event in kernel.calls
    )


def _is_by_place(access: Access) -> bool:
    if access.space is not Space.GLOBAL or access.use is Use.READ or "data" in access.varies:
        return False
    slope = access.offset.compute_slope("threadIdx.x")
    placed = any("blockIdx.x" in name for name in access.offset.terms)
    return slope is not None and bool(slope.terms) and placed


def _explain_risk(source: CudaSource, kernel: Kernel) -> str | None:
    launches = find_launches(source, kernel)
    for launch in launches:
        if launch.grid.rounded_up and launch.grid.count is None:
            return f"the grid is rounded up in line {launch.line}"
    # Launches in this file do not round the grid up, so they may fit.
    for one in kernel.parameters if not launches else ():
        if not one.pointer and one.type in _INTEGERS and _SIZE.match(one.name) and one.name not in kernel.read:
            return f"the parameter `{one.name}` is never read"
    return None
