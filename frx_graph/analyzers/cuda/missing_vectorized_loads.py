"""Detect a thread that reads 2, 4 or more adjacent elements with one load each, where one load would do.

Certain if the reads of one array differ by 0, 1, … up to the stride between neighbouring threads. All parts of the
index must be multiples of that stride, so that the address is aligned for any values. Silent for elements of 16 bytes,
and if the pointer itself has an unknown offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frx_graph.analyzers.cuda.finding import Occurrence
from frx_graph.evidence.cuda.source import Access, CudaSource, Kernel, Space, Use

WIDEST = 16
"""Bytes of the widest load of a thread: https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/#vectorized-memory-access"""


def detect(source: CudaSource) -> Iterator[Occurrence]:
    """Yield one occurrence per array of a kernel."""
    for kernel in source.kernels:
        seen = set()
        reads = [one for one in kernel.accesses if one.space is Space.GLOBAL and one.use is Use.READ]
        for read in reads:
            width = read.stride.elements
            if width not in (2, 4, 8, 16) or not read.element_bytes or read.element_bytes >= WIDEST or read.step.single:
                continue
            # If the kernel also reads the array by wider elements, the single reads are for its end.
            wider = any(one.base == read.base and one.element != read.element for one in reads)
            if read.base in seen or wider:
                continue
            if len(_find_neighbours(read, reads, width)) == width or _is_looped_over(kernel, read, width):
                seen.add(read.base)
                elements = f"{width} elements of {read.element_bytes} bytes"
                said = f"each thread reads {elements} of `{read.base}` that lie side by side"
                yield Occurrence(kernel.name, read.step.line, said, read)


def _find_neighbours(read: Access, reads: Sequence[Access], width: int) -> set[int]:
    """Return the places in a row of `width` that are read in one go, counted from an aligned one."""
    if any(times % width for name, times in read.offset.terms.items() if name):
        return set()
    places = set()
    for other in reads:
        if other.base == read.base and other.step.loops == read.step.loops and other.step.arms == read.step.arms:
            apart = (other.offset - read.offset).constant
            first = read.offset.terms.get((), 0)
            if apart is not None and (first + apart) // width == first // width and other.element == read.element:
                places.add((first + apart) % width)
    return places


def _is_looped_over(kernel: Kernel, read: Access, width: int) -> bool:
    """Return True for a loop of `width` iterations that each take the next element."""
    if not read.step.loops:
        return False
    loop = kernel.loops.get(read.step.loops[-1])
    if loop is None or loop.count != width:
        return False
    ones = [name for name, times in read.offset.terms.items() if times % width]
    return len(ones) == 1 and ones[0] == (f"loop:{loop.step.line}",) and read.offset.terms[ones[0]] == 1
