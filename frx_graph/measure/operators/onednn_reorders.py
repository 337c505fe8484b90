"""Find the layout copies among the reorders of a oneDNN log, and the role of each copied tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from frx_graph.evidence.onednn import MemoryDescriptor, Primitive
from frx_graph.measure.operators.operator_measurement import ObservedRole


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
    role: ObservedRole
    argument: str
    result: bool
    """True if the primitive wrote the tensor, false if it read it."""
    reorder: Primitive
    served: Primitive | None
    """None for a lone reorder, which counts as that of an input."""


def find_layout_reorders(primitives: Sequence[Primitive]) -> tuple[LayoutReorder, ...]:
    """Return the reorders that only change a memory format, with the role of the copied tensor.

    A reorder serves the next primitive that reads its result, or the last one whose result it reads; a lone one is an
    input. Changes of dtype (quantisation or autocast) and same-format copies (bias vectors, buffers) are not layout
    copies.
    """
    found: list[LayoutReorder] = []
    taken: set[tuple[int, str]] = set()
    for position, primitive in enumerate(primitives):
        if primitive.kind != "reorder":
            continue
        source, target = primitive.get_argument("src"), primitive.get_argument("dst")
        if source is None or target is None or source.dtype != target.dtype or source.format == target.format:
            continue
        itemsize, shape = source.itemsize, source.dims
        if itemsize is None or shape is None or math.prod(shape) == 0:
            continue
        role, argument, result, served = _find_served(primitives, position, source, target, taken)
        formats = source.format, target.format
        found.append(LayoutReorder(shape, itemsize, *formats, role, argument, result, reorder=primitive, served=served))
    return tuple(found)


def _find_served(
    primitives: Sequence[Primitive],
    position: int,
    source: MemoryDescriptor,
    target: MemoryDescriptor,
    taken: set[tuple[int, str]],
) -> tuple[ObservedRole, str, bool, Primitive | None]:
    """Return role, argument name, True if it was written, and the primitive that wrote or read it.

    The tensor is the result of the primitive before, else an operand of the one after. Every argument is converted
    once, so the order distinguishes two of equal shape and format.
    """
    for places, reordered, is_result in (
        (range(position - 1, -1, -1), source, True),
        (range(position + 1, len(primitives)), target, False),
    ):
        place = next((place for place in places if primitives[place].kind != "reorder"), None)
        if place is None:
            continue
        served = primitives[place]
        for used in served.outputs if is_result else served.inputs:
            if (place, used.argument) not in taken and _is_same_tensor(served, used, reordered):
                taken.add((place, used.argument))
                role: ObservedRole = "output" if is_result else "input"
                return "weight" if used.argument.startswith("wei") else role, used.argument, is_result, served
    return "input", "src", False, None


def _is_same_tensor(primitive: Primitive, argument: MemoryDescriptor, reordered: MemoryDescriptor) -> bool:
    if argument.dtype != reordered.dtype:
        return False
    if argument.dims is None or reordered.dims is None:
        return argument.format == reordered.format
    if primitive.kind == "deconvolution" and argument.argument == "wei":
        # torch stores its weight with in and out channels swapped; one and the same memory has two tags then.
        return sorted(argument.dims) == sorted(reordered.dims)
    return argument.format == reordered.format and argument.dims == reordered.dims
