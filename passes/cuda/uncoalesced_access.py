"""Neighbouring threads of a warp use elements of global memory that lie apart, each in a sector of its own.

Certain only of a stride that is a number, or a product of names with whole factors: that a matrix is one column wide
nobody writes a kernel for. Silent where one thread of a warp is at work, where the accesses of a thread together use
all that lies between (then a vector would do, see `missing_vectorized_loads`), and where the stride cannot be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frx_graph.evidence.cuda.source import Access, CudaSource, Space, StrideKind
from frx_graph.passes.cuda.finding import CudaDetector, Sight

SECTOR = 32
"""Bytes that are moved at once: https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/#coalesced-access-to-global-memory"""
_LEAST = 2
"""Elements: every second one wastes half of what is moved."""


def detect(source: CudaSource) -> Iterator[Sight]:
    """One sight for an array and stride in a kernel."""
    for kernel in source.kernels:
        seen: set[tuple[str, str | None]] = set()
        accesses = [access for access in kernel.accesses if access.space is Space.GLOBAL]
        for access in accesses:
            key = (access.base, access.stride.text)
            if key in seen or not _apart(access) or _together(access, accesses):
                continue
            seen.add(key)
            yield Sight(kernel.name, access.step.line, _said(access), access)


def _apart(access: Access) -> bool:
    if access.step.single:
        return False
    stride = access.stride
    if stride.kind is StrideKind.SYMBOLIC:
        return True
    return stride.kind is StrideKind.STRIDED and abs(stride.elements or 0) >= _LEAST


def _together(access: Access, accesses: Sequence[Access]) -> bool:
    """True if what is skipped is used by the same thread: of a stride of 3 elements, at least 2."""
    elements = access.stride.elements
    if elements is None or access.element_bytes is None:
        return False
    if abs(elements) * access.element_bytes > SECTOR * 4:
        return False
    places = set()
    for other in accesses:
        if other.base == access.base and other.stride.elements == elements:
            apart = (other.offset - access.offset).constant
            if apart is not None:
                places.add(apart % abs(elements))
            elif _steps_by_one(other):
                return True
    return 2 * len(places) > abs(elements)


def _steps_by_one(access: Access) -> bool:
    """True of one that goes on to the next element with each turn of a loop."""
    return any(
        slope is not None and slope.constant == 1
        for slope in (access.offset.slope(symbol) for symbol in access.varies | set(access.offset.symbols()))
        if slope is not None
    )


def _said(access: Access) -> str:
    stride = access.stride
    size = "" if access.element_bytes is None else f" of {access.element_bytes} bytes"
    bytes_apart = (
        f", {stride.elements * access.element_bytes} bytes" if stride.elements and access.element_bytes else ""
    )
    verb = "written" if access.use.value == "write" else "read" if access.use.value == "read" else "updated"
    return f"`{access.text}` is {verb} by neighbouring threads {stride.text} elements{size} apart{bytes_apart}"


DETECTOR = CudaDetector("uncoalesced_access", detect)
