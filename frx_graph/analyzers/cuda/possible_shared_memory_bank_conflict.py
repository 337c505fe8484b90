"""Detect threads of a warp that need different words of one bank of shared memory, which serves one at a time.

Certain if the stride between neighbouring threads is a number (32 for a column of `tile[32][32]`), or a multiple of an
even one. Also certain if quotients, remainders and bits of the place alone choose the element, which is tried thread by
thread. Silent if only a part of a warp works, if the stride is unknown, or if a thread uses all elements in between.
Silent if only the rows of threads in a warp conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.analyzers.cuda.uncoalesced_access import is_stepping_by_one
from frx_graph.evidence.cuda.source import Access, CudaSource, Space, StrideKind

_WIDEST = 16
"""Most bytes of one access of a thread."""


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per array and stride in a kernel."""
    for kernel in source.kernels:
        seen: set[tuple[str, str | None]] = set()
        for access in kernel.accesses:
            key = (access.base, access.stride.text or access.text)
            if access.space is not Space.SHARED or (access.conflict or 1) < 2 or key in seen:
                continue
            if not (_is_slight(access) or _is_partial_warp(access) or _is_side_by_side(access, kernel.accesses)):
                seen.add(key)
                yield Occurrence(kernel.name, access.step.line, _format_message(access), access)


def _format_message(access: Access) -> str:
    if access.stride.text in (None, "0"):
        return f"`{access.text}`: {access.conflict} threads of a warp want different words of the same bank"
    size = f" of {access.element_bytes} bytes" if access.element_bytes is not None else ""
    least = "at least " if access.stride.kind is StrideKind.SYMBOLIC or not size else ""
    return (
        f"`{access.text}`: neighbouring threads are {access.stride.text} elements{size} apart, "
        f"{least}{access.conflict} of a warp in the same bank"
    )


def _is_side_by_side(access: Access, accesses: Sequence[Access]) -> bool:
    """Return True if the thread uses all places between its element and its neighbour's, or reaches the next one in a
    loop. The compiler merges these into accesses of 8 or 16 bytes; at an odd distance those do not conflict."""
    step = access.stride.elements
    if access.element_bytes is None:
        return False
    if not step:
        # Accesses of 16 bytes serve a quarter of the threads at once.
        few = access.stride.kind is not StrideKind.SYMBOLIC and (access.conflict or 0) < 8
        return few and (
            is_stepping_by_one(access)
            or any(
                other.base == access.base
                and other.use is access.use
                and (other.offset - access.offset).constant in (1, -1)
                for other in accesses
            )
        )
    wide, rest = divmod(abs(step) * access.element_bytes, _WIDEST)
    if rest == 0 and wide % 2 and is_stepping_by_one(access):
        return True
    if step * access.element_bytes > _WIDEST:
        return False
    places = set()
    for other in accesses:
        if other.base == access.base and other.use is access.use and other.step.arms == access.step.arms:
            if other.stride.elements == step and is_stepping_by_one(other):
                return True
            apart = (other.offset - access.offset).constant
            if apart is not None:
                places.add(apart % step)
    return len(places) == step


def _is_slight(access: Access) -> bool:
    """Return True if only the rows of threads in a warp conflict, in a bank or two, as in a row padded by one."""
    if access.stride.kind is StrideKind.SYMBOLIC or (access.conflict or 0) >= 4:
        return False
    step = access.stride.elements
    return not step or step % 2 == 1


def _is_partial_warp(access: Access) -> bool:
    """Return True if only a part of a warp works, or a conflict-free part may: 16 threads can avoid conflicts."""
    below = access.step.conditions
    few = (access.conflict or 0) < 4 and access.stride.kind is not StrideKind.SYMBOLIC
    return any(one.single or one.lane or (few and one.thread and "block" not in one.varies) for one in below)
