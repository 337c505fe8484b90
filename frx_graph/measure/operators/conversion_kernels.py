"""Find the layout-conversion kernels of GPU convolution libraries, and the tensors that they convert.

cuDNN and MIOpen convert inside one call, and only the kernel's name shows it. The name does not identify the tensor,
which is inferred from the order in which a convolution needs its operands. A kernel whose tensor cannot be identified
is left out: its bytes are not guessed.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frx_graph.measure.operators.operator_measurement import Mechanism, SeenCopy

_CONVERSION = re.compile(r"(nchw|nhwc|ncdhw|ndhwc)to(nchw|nhwc|ncdhw|ndhwc)", re.IGNORECASE)
_CHANNELS_LAST = frozenset({"nhwc", "ndhwc"})
_FORWARD_READS = ((0, "input"), (1, "weight"))
"""Argument positions of `convolution(input, weight)`; the order was read off cuDNN 8 traces (input, weight, result)."""
_BACKWARD_READS = ((0, "input"), (2, "weight"), (1, "input"), (0, "input"))
"""Argument positions of `convolution_backward(grad_output, input, weight)`: gradient and weight for the input's
gradient, then input and gradient for the weight's. No trace at hand confirms this order."""
_BACKWARD_WRITES: tuple[tuple[int | tuple[int, ...] | None, str], ...] = ((1, "output"), (2, "weight"))


@dataclass(frozen=True, slots=True)
class ConvolutionOperands:
    """The shapes of a convolution call's operands, in the order of arguments, and of the result (None if unknown)."""

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    itemsize: int
    output: tuple[int, ...] | None


def is_conversion(name: str) -> bool:
    """Return True for a kernel that converts between channels-first and channels-last."""
    found = _CONVERSION.search(name)
    return found is not None and found[1].lower() != found[2].lower()


def find_conversions(kernels: Sequence[str], call: ConvolutionOperands) -> tuple[SeenCopy, ...]:
    """Return the conversions among the kernels of one convolution call, which are given by name, in order."""
    backward = call.operator.endswith("convolution_backward")
    reads = deque(_BACKWARD_READS if backward else _FORWARD_READS)
    writes = deque(_BACKWARD_WRITES if backward else [(call.output, "output")])
    seen: list[SeenCopy] = []
    for kernel in kernels:
        found = _CONVERSION.search(kernel)
        if found is None or not is_conversion(kernel):
            continue
        operand: int | None = None
        shape: tuple[int, ...] | None = None
        role = "output"
        if found[2].lower() in _CHANNELS_LAST and reads:
            operand, role = reads.popleft()
            shape = call.shapes[operand] if operand < len(call.shapes) else None
        elif found[1].lower() in _CHANNELS_LAST and writes:
            written, role = writes.popleft()
            if isinstance(written, int):
                shape = call.shapes[written] if written < len(call.shapes) else None
            else:
                shape = written
        if shape is None or math.prod(shape) == 0:
            continue
        seen.append(
            SeenCopy(
                mechanism=Mechanism.KERNEL,
                shape=shape,
                itemsize=call.itemsize,
                source=found[1].lower(),
                target=found[2].lower(),
                role=role,
                operand=operand,
            )
        )
    return tuple(seen)


def compute_convolution_output(shapes: Sequence[Sequence[int]], arguments: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the shape of `aten::convolution`'s result; `arguments` are its concrete arguments as the profiler records
    them (tensors None). None if they were not recorded."""
    if len(shapes) < 2 or len(arguments) < 9 or not all(isinstance(a, (list, tuple)) for a in arguments[3:6]):
        return None
    source, weight = shapes[0], shapes[1]
    stride, padding, dilation, transposed, extra, groups = arguments[3:9]
    rank = len(source) - 2
    if rank < 1 or len(weight) != rank + 2:
        return None

    def get_axis(values: Sequence[int], axis: int) -> int:
        return int(values[axis if len(values) > 1 else 0]) if values else 0

    sizes: list[int] = []
    for axis in range(rank):
        reach = get_axis(dilation, axis) * (weight[axis + 2] - 1)
        if transposed:
            size = (
                (source[axis + 2] - 1) * get_axis(stride, axis)
                - 2 * get_axis(padding, axis)
                + reach
                + get_axis(extra, axis)
                + 1
            )
        else:
            size = (source[axis + 2] + 2 * get_axis(padding, axis) - reach - 1) // get_axis(stride, axis) + 1
        sizes.append(size)
    channels = weight[1] * int(groups) if transposed else weight[0]
    return (source[0], channels, *sizes)
