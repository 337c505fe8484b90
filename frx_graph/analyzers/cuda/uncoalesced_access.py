"""Detect neighbouring threads of a warp that access distant elements of global memory, each in another sector.

Certain only if the stride is a number, or a product of names with whole factors: no kernel is written for a matrix of
one column. Silent if one thread of a warp works, if the stride is unknown, or if a launch gives a stride for each
dimension. Silent if the accesses of a thread together use everything in between; then a vector would do
(`missing_vectorized_loads`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from frx_graph.analyzers.cuda.finding import Occurrence, find_launches
from frx_graph.evidence.cuda.source import Access, CudaSource, Kernel, Space, StrideKind, Use

SECTOR = 32
"""Bytes that are moved at once: https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/#coalesced-access-to-global-memory"""
_OF_A_LINE = 4 * SECTOR
"""Bytes of a cache line. A thread finds the skipped part there in its next iteration."""
_LEAST = 8
"""Bytes from thread to thread: a warp of adjacent 4-byte elements takes 4 sectors."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_FLAG = re.compile(r"(?:^|_)(?:is|has|use|do|inc)(?:_|$)|^inc[a-z]$")
"""Factors that are mostly 0 or 1, as in `x[i * scale_is_vector]`, and the increments of BLAS."""
_SIZES = frozenset(["blockDim", "gridDim"])


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per array and stride in a kernel."""
    for kernel in source.kernels:
        launches = find_launches(source, kernel)
        if launches and all(launch.block.sizes[0] == 1 for launch in launches):
            # Neighbours are along y.
            continue
        seen: set[tuple[str, str | None]] = set()
        accesses = [access for access in kernel.accesses if access.space is Space.GLOBAL]
        for access in accesses:
            key = (access.base, access.stride.text)
            if key in seen or not _is_apart(access) or _has_any_layout(kernel, access):
                continue
            if _is_used_together(kernel, access, accesses):
                continue
            seen.add(key)
            yield Occurrence(kernel.name, access.step.line, _format_message(access), access)


def _is_apart(access: Access) -> bool:
    if access.step.single:
        return False
    stride = access.stride
    if stride.kind is StrideKind.SYMBOLIC:
        return not any(_FLAG.search(name) for name in _NAME.findall(stride.text or ""))
    # If the element size is unknown, two elements count as far enough.
    apart = abs(stride.elements or 0) * (access.element_bytes or _LEAST // 2)
    return stride.kind is StrideKind.STRIDED and apart >= _LEAST


def _has_any_layout(kernel: Kernel, access: Access) -> bool:
    """Return True if the dimensions of a tensor have separate strides, which are parameters: any of them may be 1."""
    strides = {one.name for one in kernel.parameters if "stride" in one.name.lower()}
    moved = strides.intersection(_NAME.findall(access.stride.text or ""))
    return bool(moved) and len(strides.intersection(_NAME.findall(str(access.offset)))) > 1


def _is_used_together(kernel: Kernel, access: Access, accesses: Sequence[Access]) -> bool:
    """Return True if the same thread soon uses the skipped elements: for a stride of 3 elements at least 2, or one
    after another in a loop."""
    elements = access.stride.elements
    if elements is None:
        return _is_fixed(kernel, access) and (
            is_stepping_by_one(access) or any(_is_beside(other, access) for other in accesses)
        )
    if abs(elements) * (access.element_bytes or 1) > _OF_A_LINE:
        return False
    places = set()
    for other in accesses:
        if other.base == access.base and other.stride.elements == elements:
            if is_stepping_by_one(other):
                return True
            apart = other.offset - access.offset
            if apart.constant is not None:
                places.add(apart.constant % abs(elements))
            elif other.step.loops == access.step.loops and not any("loop:" in name for name in apart.iterate_symbols()):
                # `a[3*i + stride]`, which is next to it if the stride is 1.
                return True
    return 2 * len(places) > abs(elements)


def _is_beside(one: Access, other: Access) -> bool:
    """Return True for two elements of one structure: `a[3 * i]` and `a[3 * i + 1]`."""
    alike = one.base == other.base and one.stride.text == other.stride.text
    return alike and (one.offset - other.offset).constant not in (None, 0)


def _is_fixed(kernel: Kernel, access: Access) -> bool:
    """Return True for a stride known only to the compiler: it may be as small as a vector."""
    given = {one.name for one in kernel.parameters}
    names = _NAME.findall(access.stride.text or "")
    return not any(name in given or name in _SIZES for name in names)


def is_stepping_by_one(access: Access) -> bool:
    """Return True for an access that moves to the next element in each iteration of a loop."""
    return any(
        times in (1, -1) and len(name) == 1 and name[0].startswith("loop:")
        for name, times in access.offset.terms.items()
    )


def _format_message(access: Access) -> str:
    stride = access.stride
    size = "" if access.element_bytes is None else f" of {access.element_bytes} bytes"
    bytes_apart = (
        f", {stride.elements * access.element_bytes} bytes" if stride.elements and access.element_bytes else ""
    )
    verb = {Use.WRITE: "written", Use.READ: "read", Use.ATOMIC: "updated"}[access.use]
    return f"`{access.text}` is {verb} by neighbouring threads {stride.text} elements{size} apart{bytes_apart}"
