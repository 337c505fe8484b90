"""Which reorders of a oneDNN log are layout copies, and what each copied tensor is to the primitive that it served."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.evidence.onednn import MemoryDescriptor, Primitive


@dataclass(frozen=True, slots=True)
class LayoutReorder:
    """A reorder that changed nothing but the memory format, tied to the primitive that it served.

    `argument` is that primitive's name for the tensor (`src`, `wei`, `dst`); `role` is `input`, `weight` or `output`: a
    weight's gradient counts as weight, the incoming gradient of a backward primitive as input.
    """

    shape: tuple[int, ...]
    itemsize: int
    source: str
    target: str
    role: str
    argument: str
    result: bool
    """True if the primitive wrote the tensor, false if it read it."""
    reorder: Primitive
    served: Primitive | None
    """None for a lone reorder, which counts as that of an input."""


def layout_reorders(primitives: Sequence[Primitive]) -> tuple[LayoutReorder, ...]:
    """The reorders that only change a memory format, with the role of what they copy.

    A reorder serves the next primitive that reads its result, or the last one whose result it reads; a lone one is an
    input. Changes of dtype (that is quantisation or autocast) and same-format copies (bias vectors, buffers) are not
    layout copies.
    """
    found: list[LayoutReorder] = []
    taken: set[tuple[int, str]] = set()
    for position, primitive in enumerate(primitives):
        if primitive.kind != "reorder":
            continue
        source, target = primitive.argument("src"), primitive.argument("dst")
        if source is None or target is None or source.dtype != target.dtype or source.format == target.format:
            continue
        itemsize, shape = source.itemsize, source.dims
        if itemsize is None or shape is None or math.prod(shape) == 0:
            continue
        argument, role, result, served = _served(primitives, position, source, target, taken)
        found.append(
            LayoutReorder(
                shape=shape,
                itemsize=itemsize,
                source=source.format,
                target=target.format,
                role=role,
                argument=argument,
                result=result,
                reorder=primitive,
                served=served,
            )
        )
    return tuple(found)


def _served(
    primitives: Sequence[Primitive],
    position: int,
    source: MemoryDescriptor,
    target: MemoryDescriptor,
    taken: set[tuple[int, str]],
) -> tuple[str, str, bool, Primitive | None]:
    """Argument name, role, whether it was written, and by which primitive it was written or read.

    First as the result of the primitive before, then as an operand of the one behind. Every argument is converted once,
    so that two of equal shape and format are told apart by order.
    """
    before = next((i for i in range(position - 1, -1, -1) if primitives[i].kind != "reorder"), None)
    if before is not None:
        for written in primitives[before].outputs:
            if (before, written.argument) not in taken and _same(primitives[before], written, source):
                taken.add((before, written.argument))
                return (
                    written.argument,
                    "weight" if written.argument.startswith("wei") else "output",
                    True,
                    primitives[before],
                )
    behind = next((i for i in range(position + 1, len(primitives)) if primitives[i].kind != "reorder"), None)
    if behind is not None:
        for read in primitives[behind].inputs:
            if (behind, read.argument) not in taken and _same(primitives[behind], read, target):
                taken.add((behind, read.argument))
                return (
                    read.argument,
                    "weight" if read.argument.startswith("wei") else "input",
                    False,
                    primitives[behind],
                )
    return "src", "input", False, None


def _same(primitive: Primitive, argument: MemoryDescriptor, reordered: MemoryDescriptor) -> bool:
    if argument.dtype != reordered.dtype:
        return False
    if argument.dims is None or reordered.dims is None:
        return argument.format == reordered.format
    if primitive.kind == "deconvolution" and argument.argument == "wei":
        # torch stores its weight with in and out channels swapped; one and the same memory has two tags then.
        return sorted(argument.dims) == sorted(reordered.dims)
    return argument.format == reordered.format and argument.dims == reordered.dims
